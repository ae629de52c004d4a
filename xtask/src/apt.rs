//! apt with its own lists, for packages of other suites and other architectures than this machine's. Nothing is
//! installed: packages are downloaded and unpacked.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch,
    run::{answer, must},
};

/// Debian's keys, for suites other than the machine's own.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The Debian mirrors of the machine's apt.
#[derive(Debug)]
pub struct Mirrors {
    main: String,
    security: Option<String>,
}

impl Mirrors {
    /// Asks the machine's apt.
    pub fn find() -> Result<Self> {
        let targets = || {
            answer(Command::new("apt-get").args([
                "indextargets",
                "--format",
                "$(ORIGIN) $(CODENAME) $(REPO_URI)",
                "Created-By: Packages",
            ]))
            .context("list the mirrors of apt")
        };
        let mut listing = targets()?;
        if !listing.lines().any(|line| line.starts_with("Debian ")) {
            // apt can show the origin of a list only after it has read the list.
            must(Command::new("apt-get").args(["-qq", "update"]))?;
            listing = targets()?;
        }
        let uri_of = |security: bool| {
            listing.lines().find_map(|line| {
                let mut words = line.split(' ');
                let debian = words.next() == Some("Debian");
                let matches = words.next()?.ends_with("-security") == security;
                words
                    .next()
                    .filter(|_| debian && matches)
                    .map(str::to_owned)
            })
        };
        Ok(Self {
            main: uri_of(false).context("apt on this machine has no Debian mirror")?,
            security: uri_of(true),
        })
    }

    /// The line of a sources.list.
    pub fn source(&self, suite: &str) -> Result<String> {
        let mirror = if suite.ends_with("-security") {
            let mirror = self.security.as_ref();
            mirror.context("apt on this machine has no mirror of Debian's security updates")?
        } else {
            &self.main
        };
        let keys = if Path::new(KEYRING).exists() {
            format!("[signed-by={KEYRING}] ")
        } else {
            String::new()
        };
        Ok(format!("deb {keys}{mirror} {suite} main\n"))
    }
}

/// apt with lists of its own.
#[derive(Debug)]
pub struct Apt {
    dir: PathBuf,
    arch: Arch,
}

impl Apt {
    /// Reads the lists of a source for an architecture.
    pub fn new(dir: PathBuf, arch: Arch, source: &str) -> Result<Self> {
        let own = Self::of(dir, arch);
        for dir in ["state/lists/partial", "cache/archives/partial"] {
            let dir = own.dir.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        // No package is installed: dependencies are all downloaded.
        fs::write(own.dir.join("state/status"), "")?;
        fs::write(own.dir.join("sources.list"), source)?;
        quietly(own.command("apt-get").args(["-qq", "update"]))?;
        Ok(own)
    }

    /// One whose lists were read before.
    pub fn of(dir: PathBuf, arch: Arch) -> Self {
        Self { dir, arch }
    }

    /// A command of apt.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (option, path) in [
            ("Dir::State", "state"),
            ("Dir::State::status", "state/status"),
            ("Dir::Cache", "cache"),
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::Etc::sourceparts", "none"),
            ("Dir::Etc::preferences", "none"),
            ("Dir::Etc::preferencesparts", "none"),
        ] {
            let value = self.dir.join(path);
            command
                .arg("-o")
                .arg(format!("{option}={}", value.display()));
        }
        command.arg("-o");
        command.arg(format!("APT::Architecture={}", self.arch.name()));
        command.arg("-o");
        command.arg(format!("APT::Architectures={}", self.arch.name()));
        command.args([
            "-o",
            "Acquire::Languages=none",
            "-o",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
            // apt's user cannot write below target/.
            "-o",
            "APT::Sandbox::User=root",
        ]);
        command
    }

    /// Downloads packages and unpacks them into a directory that must not exist. It is there when all is.
    pub fn unpack(&self, packages: &[String], to: &Path) -> Result<()> {
        let aside = empty_beside(to)?;
        let mut download = self.command("apt-get");
        download.args(["-qq", "download"]).args(packages);
        quietly(download.current_dir(&aside)).context("download")?;
        extract(&aside, &aside)?;
        fs::rename(&aside, to).with_context(|| format!("rename to {}", to.display()))
    }

    /// The same with all packages that they depend on.
    pub fn unpack_with_dependencies(&self, packages: &[&str], to: &Path) -> Result<()> {
        let mut download = self.command("apt-get");
        download
            .args(["-qq", "install", "--download-only", "-y"])
            .args(["--no-install-recommends", "-o", "Debug::NoLocking=1"])
            .args(packages);
        quietly(&mut download).context("download")?;
        let aside = empty_beside(to)?;
        extract(&self.dir.join("cache/archives"), &aside)?;
        fs::rename(&aside, to).with_context(|| format!("rename to {}", to.display()))
    }
}

/// A directory that is renamed when it is complete: an interrupted run leaves no half of it.
fn empty_beside(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().context("a directory with a name")?;
    let aside = path.with_file_name(format!("{}.unpacking", name.display()));
    let _ = fs::remove_dir_all(&aside);
    fs::create_dir_all(&aside).with_context(|| format!("create {}", aside.display()))?;
    Ok(aside)
}

/// Unpacks the archives of a directory and removes them.
fn extract(archives: &Path, to: &Path) -> Result<()> {
    for file in fs::read_dir(archives)? {
        let file = file?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            must(Command::new("dpkg-deb").arg("-x").arg(&file).arg(to))?;
            fs::remove_file(file)?;
        }
    }
    Ok(())
}

/// Runs a command; the error is the one that apt prints.
pub fn quietly(command: &mut Command) -> Result<()> {
    let output = command.output().context("run apt")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let complaint = stderr.lines().find_map(|line| line.strip_prefix("E: "));
    match complaint {
        None if output.status.success() => Ok(()),
        complaint => bail!(
            "{}",
            complaint.unwrap_or("apt failed without an error message")
        ),
    }
}
