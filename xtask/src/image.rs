//! The OCI image: two statically linked programs, the agent's with its manual pages and completion scripts, and the
//! webhook's. The agent copies its own to the node as CNI plugin, where no libraries can be assumed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    build,
    run::{answer, must, require_root, root},
    setup,
};

/// The capabilities that the DaemonSet grants; `doctor` runs with the same.
const CAPABILITIES: [&str; 5] = ["BPF", "PERFMON", "NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE"];

/// A larger image contains something that does not belong there.
const LARGEST: u64 = 40_000_000;

#[derive(Debug, Args)]
pub struct Options {
    /// Name and tag of the image in the archive
    #[arg(long, default_value = concat!("sidetrack:", env!("CARGO_PKG_VERSION")))]
    tag: String,
    /// Only copy the image's files into this directory, as deploy/Dockerfile does
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
}

/// Builds the image, prints its size, and runs `sidetrack doctor` from it.
pub fn run(options: &Options) -> Result<ExitCode> {
    if let Some(dir) = &options.files {
        collect(&std::path::absolute(dir)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    require_root("image")?;
    setup::for_images()?;
    let dir = root().join("target/image");
    let files = dir.join("files");
    if files.exists() {
        fs::remove_dir_all(&files).with_context(|| format!("empty {}", files.display()))?;
    }
    collect(&files)?;
    let archive = dir.join("sidetrack.oci.tar");
    let _ = fs::remove_file(&archive);
    let buildah = Buildah::new(&dir)?;
    buildah.copy(&files)?;
    buildah.commit(&archive, &options.tag)?;
    let bytes = fs::metadata(&archive)?.len();
    println!(
        "{}: {}, {:.1} MB",
        archive.display(),
        options.tag,
        bytes as f64 / 1e6
    );
    if bytes > LARGEST {
        bail!("the image is larger than {} MB", LARGEST / 1_000_000);
    }
    println!("\nsidetrack doctor, from the image:\n");
    buildah.doctor()?;
    println!(
        "\nTo push it: buildah push oci-archive:{} docker://REGISTRY/sidetrack:TAG",
        archive.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// The files of the image.
fn collect(dir: &Path) -> Result<()> {
    let built = build::statically_linked()?;
    for program in ["sidetrack", "sidetrack-webhook"] {
        let binary = built.join(program);
        let libraries = answer(Command::new("ldd").arg(&binary)).unwrap_or_default();
        if libraries.contains("=>") {
            bail!("{} needs libraries: {libraries}", binary.display());
        }
        install(&binary, &dir.join("usr/bin").join(program))?;
    }
    documents(&built.join("sidetrack"), &dir.join("usr/share"))
}

/// Completion scripts and manual pages, where distributions put them.
fn documents(binary: &Path, share: &Path) -> Result<()> {
    for (shell, path) in [
        ("bash", "bash-completion/completions/sidetrack"),
        ("zsh", "zsh/site-functions/_sidetrack"),
        ("fish", "fish/vendor_completions.d/sidetrack.fish"),
    ] {
        let path = share.join(path);
        let parent = path.parent().context("a path in the image")?;
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        let script = answer(Command::new(binary).args(["completions", shell]))
            .with_context(|| format!("`sidetrack completions {shell}` failed"))?;
        fs::write(&path, script).with_context(|| format!("write {}", path.display()))?;
    }
    let mut man = Command::new(binary);
    must(man.arg("man").arg(share.join("man/man1")))
}

fn install(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a path in the image")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// A working container with its own storage below target/. Dropping it removes both.
struct Buildah {
    storage: PathBuf,
    container: String,
}

impl Buildah {
    fn new(dir: &Path) -> Result<Self> {
        let storage = dir.join("storage");
        let mut own = Self {
            storage,
            container: String::new(),
        };
        own.container = answer(own.command().args(["from", "scratch"]))
            .context("`buildah from scratch` failed")?;
        Ok(own)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("buildah");
        command
            .arg("--root")
            .arg(self.storage.join("root"))
            .arg("--runroot")
            .arg(self.storage.join("run"))
            .args(["--storage-driver", "vfs"]);
        command
    }

    fn copy(&self, files: &Path) -> Result<()> {
        let mut command = self.command();
        command
            .args(["copy", "--quiet", &self.container])
            .arg(files)
            .arg("/");
        must(command.stdout(std::process::Stdio::null()))
    }

    fn commit(&self, archive: &Path, tag: &str) -> Result<()> {
        must(
            self.command()
                .args(["config", "--entrypoint", r#"["/usr/bin/sidetrack"]"#])
                .args(["--env", "PATH=/usr/bin", &self.container]),
        )?;
        let layout = archive.with_extension("");
        let _ = fs::remove_dir_all(&layout);
        let target = format!("oci:{}:{tag}", layout.display());
        let mut command = self.command();
        command.args(["commit", "--quiet", &self.container, &target]);
        must(command.stdout(std::process::Stdio::null()))?;
        name(&layout.join("index.json"), tag)?;
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(archive).arg("-C").arg(&layout);
        must(tar.args(["oci-layout", "index.json", "blobs"]))?;
        fs::remove_dir_all(&layout).with_context(|| format!("remove {}", layout.display()))
    }

    /// The command in the image.
    fn sidetrack(&self, words: &[&str]) -> Command {
        let mut command = self.command();
        command.args(["run", "--isolation", "chroot"]);
        for capability in CAPABILITIES {
            command.args(["--cap-add", &format!("CAP_{capability}")]);
        }
        command.args([&self.container, "--", "/usr/bin/sidetrack"]);
        command.args(words);
        command
    }

    /// Shows doctor's table. The image has no mounts, so that only what the kernel lacks is a failure.
    fn doctor(&self) -> Result<()> {
        let mut shown = self.sidetrack(&["doctor"]);
        shown.status().context("run doctor in the image")?;
        let output = self.sidetrack(&["doctor", "-o", "json"]).output()?;
        let report: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("read doctor's report")?;
        if report["able"] != true {
            bail!("this machine's kernel cannot run sidetrack");
        }
        Ok(())
    }
}

/// Writes the image's full name into a layout's index. containerd imports the archive under this name, which is
/// the one kubelet asks for.
fn name(index: &Path, tag: &str) -> Result<()> {
    let read = || format!("read {}", index.display());
    let text = fs::read_to_string(index).with_context(read)?;
    let mut content: serde_json::Value = serde_json::from_str(&text).with_context(read)?;
    content["manifests"][0]["annotations"]["io.containerd.image.name"] = full_name(tag).into();
    fs::write(index, content.to_string()).with_context(|| format!("write {}", index.display()))
}

/// A name as Kubernetes completes it: without a registry it is one of docker.io.
fn full_name(tag: &str) -> String {
    match tag.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => tag.to_owned(),
        Some(_) => format!("docker.io/{tag}"),
        None => format!("docker.io/library/{tag}"),
    }
}

impl Drop for Buildah {
    fn drop(&mut self) {
        let _ = answer(self.command().args(["rm", &self.container]));
        let _ = fs::remove_dir_all(&self.storage);
    }
}

#[cfg(test)]
mod tests;
