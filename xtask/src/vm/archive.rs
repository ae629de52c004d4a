//! Lists and downloads kernels of Debian's archive.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::{Apt, Mirrors},
    arch::Arch,
    run::answer,
};

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
const FLAVOR: &str = "-cloud-";

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
    /// The directory with its modules, named after its release. None if the image has everything built in.
    pub modules: Option<PathBuf>,
}

/// The kernels of the archive.
#[derive(Debug)]
pub struct Archive {
    dir: PathBuf,
    arch: Arch,
    /// Every kernel, newest first.
    pub kernels: Vec<Kernel>,
    /// Suites that could not be read, and why.
    pub unread: Vec<(String, String)>,
}

impl Archive {
    /// Reads every suite's list.
    pub fn read(dir: &Path, arch: Arch) -> Result<Self> {
        let mirrors = Mirrors::find()?;
        let mut own = Self {
            dir: dir.to_owned(),
            arch,
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
        let apt = Apt::new(self.apt_dir(name), self.arch, &mirrors.source(name)?)?;
        let listing = answer(apt.command("apt-cache").args(["pkgnames", "linux-image-"]))
            .context("list the packages")?;
        let names: Vec<&str> = listing
            .lines()
            .filter(|name| is_kernel(name, self.arch))
            .collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let descriptions = answer(apt.command("apt-cache").arg("show").args(&names))
            .context("read the packages' descriptions")?;
        Ok(descriptions
            .split("\n\n")
            .filter_map(|description| kernel(name, description, self.arch))
            .collect())
    }

    fn apt_dir(&self, suite: &str) -> PathBuf {
        self.dir.join("apt").join(suite)
    }

    fn unpack(&self, kernel: &Kernel) -> Result<Unpacked> {
        let dir = self.dir.join("kernels").join(&kernel.version);
        if !dir.exists() {
            let apt = Apt::of(self.apt_dir(&kernel.suite), self.arch);
            eprintln!("vm: downloading {}", kernel.packages[0]);
            let packages: Vec<String> = kernel
                .packages
                .iter()
                .map(|name| format!("{name}={}", kernel.version))
                .collect();
            apt.unpack(&packages, &dir)?;
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
        Ok(Self {
            image,
            modules: Some(modules),
        })
    }
}

/// Whether a package is a kernel, not a package that depends on the newest of a series.
fn is_kernel(package: &str, arch: Arch) -> bool {
    release(package, arch).is_some_and(|release| {
        release
            .split(['.', '-', '+'])
            .take(3)
            .all(|part| part.parse::<u32>().is_ok())
    })
}

fn release(package: &str, arch: Arch) -> Option<&str> {
    let release = package.strip_prefix("linux-image-")?;
    let flavored = release.strip_suffix(arch.name())?.ends_with(FLAVOR);
    flavored.then_some(release)
}

/// A kernel from its package's description.
fn kernel(suite: &str, description: &str, arch: Arch) -> Option<Kernel> {
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
        release: release(package, arch)?.to_owned(),
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
