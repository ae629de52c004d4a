//! The OCI image, for one architecture or several: two statically linked programs, the agent's with its manual pages and completion scripts, and the
//! webhook's. The agent copies its own to the node as CNI plugin, where no libraries can be assumed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    arch::Arch,
    archive, build,
    run::{answer, must, require_root, root},
    setup,
};

/// The capabilities that the DaemonSet grants; `doctor` runs with the same.
const CAPABILITIES: [&str; 5] = ["BPF", "PERFMON", "NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE"];

/// The most that one architecture's part may take. A larger one contains something that does not belong there.
const LARGEST: u64 = 25_000_000;

#[derive(Debug, Args)]
pub struct Options {
    /// Name and tag of the image in the archive
    #[arg(long, default_value = concat!("sidetrack:", env!("CARGO_PKG_VERSION")))]
    tag: String,
    /// An architecture that the image is for; repeatable [default: this machine's]
    #[arg(long = "arch", value_enum)]
    archs: Vec<Arch>,
    /// Only copy the image's files into this directory, as deploy/Dockerfile does
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
}

/// Builds the image, prints its size, and runs `sidetrack doctor` from it.
pub fn run(options: &Options) -> Result<ExitCode> {
    if let Some(dir) = &options.files {
        collect(&std::path::absolute(dir)?, Arch::native())?;
        return Ok(ExitCode::SUCCESS);
    }
    require_root("image")?;
    let mut archs = options.archs.clone();
    archs.sort_unstable();
    archs.dedup();
    if archs.is_empty() {
        archs.push(Arch::native());
    }
    let archive = root().join("target/image/sidetrack.oci.tar");
    let image = build(&archs, &options.tag, &archive, true)?;
    for (arch, bytes) in image.sizes {
        println!("{}: {:.1} MB", arch.name(), bytes as f64 / 1e6);
    }
    println!(
        "\nTo push {}: buildah manifest create --all sidetrack oci-archive:{}\n\
         and buildah manifest push --all sidetrack docker://REGISTRY/sidetrack:TAG",
        options.tag,
        archive.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// An index with an image for each architecture.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// The index's digest, `sha256:...`. A registry serves the index by it.
    pub digest: String,
    /// What each architecture's layers take, in the order of the index.
    pub sizes: Vec<(Arch, u64)>,
}

/// Builds the image. The same commit gives the same bytes.
pub fn build(archs: &[Arch], tag: &str, archive: &Path, doctor: bool) -> Result<Image> {
    setup::for_images()?;
    let dir = root().join("target/image");
    let buildah = Buildah::new(&dir)?;
    for arch in archs {
        let files = dir.join(format!("files-{}", arch.name()));
        if files.exists() {
            fs::remove_dir_all(&files).with_context(|| format!("empty {}", files.display()))?;
        }
        collect(&files, *arch)?;
        let container = buildah.container(&files, *arch)?;
        if doctor && *arch == Arch::native() {
            println!("sidetrack doctor, from the image:\n");
            buildah.doctor(&container)?;
            println!();
        }
    }
    let layout = dir.join("layout");
    let _ = fs::remove_dir_all(&layout);
    buildah.push(&layout, tag)?;
    name(&layout.join("index.json"), tag)?;
    let image = read(&layout, archs)?;
    let parent = archive.parent().context("a file in a directory")?;
    fs::create_dir_all(parent)?;
    archive::tar(&layout, archive)?;
    fs::remove_dir_all(&layout).with_context(|| format!("remove {}", layout.display()))?;
    for (arch, bytes) in &image.sizes {
        if *bytes > LARGEST {
            let (name, largest) = (arch.name(), LARGEST / 1_000_000);
            bail!("the image for {name} is larger than {largest} MB: {bytes} bytes");
        }
    }
    Ok(image)
}

/// The image in a layout.
fn read(layout: &Path, archs: &[Arch]) -> Result<Image> {
    let read = |path: PathBuf| -> Result<serde_json::Value> {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(serde_json::from_str(&text)?)
    };
    let blob = |it: &serde_json::Value| -> Result<serde_json::Value> {
        let digest = it["digest"]
            .as_str()
            .and_then(|it| it.strip_prefix("sha256:"));
        read(
            layout
                .join("blobs/sha256")
                .join(digest.context("a digest")?),
        )
    };
    let entry = &read(layout.join("index.json"))?["manifests"][0];
    let digest = entry["digest"].as_str().context("a digest")?.to_owned();
    let index = blob(entry)?;
    let manifests = index["manifests"]
        .as_array()
        .context("an index of images")?;
    let mut sizes = Vec::new();
    for manifest in manifests {
        let platform = manifest["platform"]["architecture"].as_str();
        let arch = archs.iter().find(|arch| platform == Some(arch.name()));
        let layers = blob(manifest)?["layers"].as_array().cloned();
        let bytes = layers
            .context("layers")?
            .iter()
            .filter_map(|it| it["size"].as_u64())
            .sum();
        sizes.push((
            *arch.context("an architecture that was not asked for")?,
            bytes,
        ));
    }
    Ok(Image { digest, sizes })
}

/// The files of the image.
fn collect(dir: &Path, arch: Arch) -> Result<()> {
    let built = build::statically_linked(arch)?;
    for program in ["sidetrack", "sidetrack-webhook"] {
        let binary = built.join(program);
        require_static(&binary)?;
        install(&binary, &dir.join("usr/bin").join(program))?;
    }
    // Written by this machine's, since pages and scripts are the same.
    let own = build::statically_linked(Arch::native())?;
    documents(&own.join("sidetrack"), &dir.join("usr/share"))
}

/// Fails if a program has a dynamic linker.
fn require_static(binary: &Path) -> Result<()> {
    let headers = answer(
        Command::new("readelf")
            .args(["--program-headers", "--wide"])
            .arg(binary),
    );
    let headers = headers.with_context(|| format!("run readelf on {}", binary.display()))?;
    if headers.contains("INTERP") {
        bail!("{} needs libraries", binary.display());
    }
    Ok(())
}

/// Completion scripts and manual pages, where distributions put them.
pub fn documents(binary: &Path, to: &Path) -> Result<()> {
    let name = binary.file_name().context("a program's name")?.display();
    for (shell, path) in [
        ("bash", format!("bash-completion/completions/{name}")),
        ("zsh", format!("zsh/site-functions/_{name}")),
        ("fish", format!("fish/vendor_completions.d/{name}.fish")),
    ] {
        let path = to.join(path);
        let parent = path.parent().context("a path in the image")?;
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        let script = answer(Command::new(binary).args(["completions", shell]))
            .with_context(|| format!("`{name} completions {shell}` failed"))?;
        fs::write(&path, script).with_context(|| format!("write {}", path.display()))?;
    }
    let mut man = Command::new(binary);
    must(man.arg("man").arg(to.join("man/man1")))
}

pub fn install(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a path in the image")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// buildah with its own storage below target/. Dropping it removes the storage.
struct Buildah {
    storage: PathBuf,
}

/// The name of the index in buildah's storage.
const INDEX: &str = "sidetrack-index";

impl Buildah {
    fn new(dir: &Path) -> Result<Self> {
        let own = Self {
            storage: dir.join("storage"),
        };
        must(
            own.command()
                .args(["manifest", "create", INDEX])
                .stdout(Stdio::null()),
        )?;
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

    /// Makes a container of files, and its image a part of the index.
    fn container(&self, files: &Path, arch: Arch) -> Result<String> {
        let container = answer(self.command().args(["from", "scratch"]))
            .context("`buildah from scratch` failed")?;
        let mut copy = self.command();
        copy.args(["copy", "--quiet", &container])
            .arg(files)
            .arg("/");
        must(copy.stdout(Stdio::null()))?;
        must(
            self.command()
                .args(["config", "--os", "linux", "--arch", arch.name()])
                .args(["--entrypoint", r#"["/usr/bin/sidetrack"]"#])
                .args(["--env", "PATH=/usr/bin"])
                .args(["--label", "org.opencontainers.image.title=sidetrack"])
                .args([
                    "--label",
                    "org.opencontainers.image.licenses=Apache-2.0 OR MIT",
                ])
                .arg("--label")
                .arg(concat!(
                    "org.opencontainers.image.version=",
                    env!("CARGO_PKG_VERSION")
                ))
                .arg(&container),
        )?;
        let mut commit = self.command();
        commit
            .args(["commit", "--quiet", "--timestamp", &build::source_date()])
            .args(["--manifest", INDEX, &container]);
        must(commit.stdout(Stdio::null()))?;
        Ok(container)
    }

    /// Writes the index and its images as an OCI layout.
    fn push(&self, layout: &Path, tag: &str) -> Result<()> {
        let mut command = self.command();
        command
            .args([
                "manifest", "push", "--all", "--quiet", "--format", "oci", INDEX,
            ])
            .arg(format!("oci:{}:{tag}", layout.display()));
        must(command.stdout(Stdio::null()))
    }

    /// The command in the image.
    fn sidetrack(&self, container: &str, words: &[&str]) -> Command {
        let mut command = self.command();
        command.args(["run", "--isolation", "chroot"]);
        for capability in CAPABILITIES {
            command.args(["--cap-add", &format!("CAP_{capability}")]);
        }
        command.args([container, "--", "/usr/bin/sidetrack"]);
        command.args(words);
        command
    }

    /// Shows doctor's table. The image has no mounts, so that only what the kernel lacks is a failure.
    fn doctor(&self, container: &str) -> Result<()> {
        // buildah calls the exit code of a doctor that misses the mounts an error.
        let shown = self.sidetrack(container, &["doctor"]).output();
        let shown = shown.context("run doctor in the image")?;
        print!("{}", String::from_utf8_lossy(&shown.stdout));
        if shown.stdout.is_empty() {
            bail!("{}", String::from_utf8_lossy(&shown.stderr));
        }
        let output = self
            .sidetrack(container, &["doctor", "-o", "json"])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("read doctor's report; it said: {said}"))?;
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
        let _ = answer(self.command().args(["rm", "--all"]));
        let _ = fs::remove_dir_all(&self.storage);
    }
}

#[cfg(test)]
mod tests;
