//! Lists and downloads kernels of Debian's archive. It uses apt with its own lists below target/vm/, and
//! the mirror that the machine uses.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::run::{answer, must};

/// The suites that are searched. A suite that the mirror does not have costs only its own kernels.
const SUITES: [&str; 8] = [
    "bullseye",
    "bullseye-security",
    "bookworm",
    "bookworm-security",
    "trixie",
    "trixie-security",
    "trixie-backports",
    "sid",
];

/// The kernels of cloud images: small, with every facility that the tests use.
const FLAVOR: &str = "-cloud-amd64";

/// Debian's keys, for suites other than the machine's own.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// How many packages are tried: a list may name packages that the mirror has removed since.
const TRIES: usize = 3;

/// A kernel that can be downloaded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel {
    /// Its version numbers, for ordering.
    pub number: (u32, u32, u32),
    /// Its package's version.
    pub version: String,
    /// What `uname -r` prints.
    pub release: String,
    /// The suite that has it.
    pub suite: String,
    packages: Vec<String>,
}

/// A kernel on disk.
#[derive(Debug)]
pub struct Unpacked {
    /// What QEMU boots.
    pub image: PathBuf,
    /// The directory with its modules, named after its release.
    pub modules: PathBuf,
}

/// The kernels of the archive.
#[derive(Debug)]
pub struct Archive {
    dir: PathBuf,
    /// Every kernel, newest first.
    pub kernels: Vec<Kernel>,
    /// Suites that could not be read, and why.
    pub unread: Vec<(String, String)>,
}

impl Archive {
    /// Reads every suite's list.
    pub fn read(dir: &Path) -> Result<Self> {
        let mirrors = Mirrors::find()?;
        let mut own = Self {
            dir: dir.to_owned(),
            kernels: Vec::new(),
            unread: Vec::new(),
        };
        for name in SUITES {
            match own.suite(&mirrors, name) {
                Ok(kernels) => own.kernels.extend(kernels),
                Err(error) => own.unread.push((name.to_owned(), format!("{error:#}"))),
            }
        }
        own.kernels.sort_by(|one, other| other.cmp(one));
        own.kernels.dedup();
        Ok(own)
    }

    /// Kernels of a series such as 6.1, or of all with `newest`; newest first.
    pub fn of_series(&self, series: &str) -> Vec<&Kernel> {
        self.kernels
            .iter()
            .filter(|kernel| {
                let (major, minor, _) = kernel.number;
                series == "newest" || format!("{major}.{minor}") == series
            })
            .collect()
    }

    /// The newest kernel of a series, downloaded and unpacked.
    pub fn get(&self, series: &str) -> Result<(Kernel, Unpacked)> {
        let candidates = self.of_series(series);
        let mut why = String::from("no suite has one");
        for kernel in candidates.into_iter().take(TRIES) {
            match self.unpack(kernel) {
                Ok(unpacked) => return Ok((kernel.clone(), unpacked)),
                Err(error) => why = format!("{error:#}"),
            }
        }
        for (suite, problem) in &self.unread {
            why += &format!("; {suite}: {problem}");
        }
        bail!("{why}")
    }

    fn suite(&self, mirrors: &Mirrors, name: &str) -> Result<Vec<Kernel>> {
        let apt = self.apt(name);
        apt.prepare(&mirrors.source(name)?)?;
        apt.update()?;
        let listing = answer(apt.command("apt-cache").args(["pkgnames", "linux-image-"]))
            .context("list the packages")?;
        let names: Vec<&str> = listing.lines().filter(|name| is_kernel(name)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let descriptions = answer(apt.command("apt-cache").arg("show").args(&names))
            .context("read the packages' descriptions")?;
        Ok(descriptions
            .split("\n\n")
            .filter_map(|description| kernel(name, description))
            .collect())
    }

    fn apt(&self, suite: &str) -> Apt {
        Apt {
            dir: self.dir.join("apt").join(suite),
        }
    }

    fn unpack(&self, kernel: &Kernel) -> Result<Unpacked> {
        let dir = self.dir.join("kernels").join(&kernel.version);
        if !dir.exists() {
            let aside = self.dir.join("kernels").join(".unpacking");
            let _ = fs::remove_dir_all(&aside);
            fs::create_dir_all(&aside)?;
            let apt = self.apt(&kernel.suite);
            eprintln!("vm: downloading {}", kernel.packages[0]);
            let mut download = apt.command("apt-get");
            download.args(["-qq", "download"]).args(
                kernel
                    .packages
                    .iter()
                    .map(|name| format!("{name}={}", kernel.version)),
            );
            quietly(download.current_dir(&aside)).context("download")?;
            for file in fs::read_dir(&aside)? {
                let file = file?.path();
                if file.extension().is_some_and(|extension| extension == "deb") {
                    must(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&aside))?;
                    fs::remove_file(file)?;
                }
            }
            fs::rename(&aside, &dir)?;
        }
        Unpacked::find(&dir, &kernel.release)
    }
}

impl Unpacked {
    fn find(dir: &Path, release: &str) -> Result<Self> {
        let modules = [
            format!("usr/lib/modules/{release}"),
            format!("lib/modules/{release}"),
        ];
        let modules = modules
            .iter()
            .map(|path| dir.join(path))
            .find(|path| path.join("kernel").exists())
            .with_context(|| format!("no modules of {release} in its package"))?;
        let image = [
            dir.join(format!("boot/vmlinuz-{release}")),
            dir.join(format!("usr/lib/modules/{release}/vmlinuz")),
        ];
        let image = image
            .into_iter()
            .find(|path| path.exists())
            .with_context(|| format!("no image of {release} in its package"))?;
        Ok(Self { image, modules })
    }
}

/// The Debian mirrors of the machine's apt.
struct Mirrors {
    main: String,
    security: Option<String>,
}

impl Mirrors {
    fn find() -> Result<Self> {
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

    fn source(&self, suite: &str) -> Result<String> {
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

/// apt with its own lists.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn prepare(&self, source: &str) -> Result<()> {
        for dir in ["state/lists/partial", "cache/archives/partial"] {
            let dir = self.dir.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(fs::write(self.dir.join("sources.list"), source)?)
    }

    fn update(&self) -> Result<()> {
        quietly(self.command("apt-get").args(["-qq", "update"]))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (option, path) in [
            ("Dir::State", "state"),
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
}

/// Runs a command; the error is the one that apt prints.
fn quietly(command: &mut Command) -> Result<()> {
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

/// Whether a package is a kernel, not a package that depends on the newest of a series.
fn is_kernel(package: &str) -> bool {
    release(package).is_some_and(|release| {
        release
            .split(['.', '-', '+'])
            .take(3)
            .all(|part| part.parse::<u32>().is_ok())
    })
}

fn release(package: &str) -> Option<&str> {
    let release = package.strip_prefix("linux-image-")?;
    release.ends_with(FLAVOR).then_some(release)
}

/// A kernel from its package's description.
fn kernel(suite: &str, description: &str) -> Option<Kernel> {
    let field = |name: &str| {
        description
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    let package = field("Package")?;
    let version = field("Version")?;
    // Newer kernels are in several packages.
    let parts = field("Depends")?
        .split(", ")
        .filter_map(|dependency| dependency.split(' ').next())
        .filter(|name| name.starts_with("linux-modules-") || name.starts_with("linux-binary-"));
    let mut packages = vec![package.to_owned()];
    packages.extend(parts.map(str::to_owned));
    Some(Kernel {
        number: number(version)?,
        version: version.to_owned(),
        release: release(package)?.to_owned(),
        suite: suite.to_owned(),
        packages,
    })
}

/// The first three numbers of a version; none of a release candidate.
fn number(version: &str) -> Option<(u32, u32, u32)> {
    if version.contains("~rc") {
        return None;
    }
    let upstream = version.split(['-', '~', '+']).next()?;
    let mut parts = upstream.split('.').map(str::parse);
    let mut next = || parts.next()?.ok();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests;
