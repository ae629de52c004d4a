//! The OCI image: one statically linked binary. The agent copies it to the node as CNI plugin, where
//! no libraries can be assumed.

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
    let binary = build::statically_linked()?;
    let libraries = answer(Command::new("ldd").arg(&binary)).unwrap_or_default();
    if libraries.contains("=>") {
        bail!("{} needs libraries: {libraries}", binary.display());
    }
    install(&binary, &dir.join("usr/bin/sidetrack"))
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
        let target = format!("oci-archive:{}:{tag}", archive.display());
        let mut command = self.command();
        command.args(["commit", "--quiet", &self.container, &target]);
        must(command.stdout(std::process::Stdio::null()))
    }

    fn doctor(&self) -> Result<()> {
        let mut command = self.command();
        command.args(["run", "--isolation", "chroot"]);
        for capability in CAPABILITIES {
            command.args(["--cap-add", &format!("CAP_{capability}")]);
        }
        must(command.args([&self.container, "--", "/usr/bin/sidetrack", "doctor"]))
    }
}

impl Drop for Buildah {
    fn drop(&mut self) {
        let _ = answer(self.command().args(["rm", &self.container]));
        let _ = fs::remove_dir_all(&self.storage);
    }
}
