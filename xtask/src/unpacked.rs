//! Debian packages that tests need and that are unpacked, not installed: an installation would start them as a
//! service of the machine, or change its resolv.conf.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{progress, run::tools};

/// Programs of some packages.
struct Unpacked {
    /// The directory of `target/tools` that they are in.
    directory: &'static str,
    packages: &'static [&'static str],
    /// Files that a machine has which does not need them.
    programs: &'static [&'static str],
}

const ALL: [Unpacked; 2] = [
    Unpacked {
        directory: "prometheus",
        packages: &["prometheus"],
        programs: &["/usr/bin/prometheus", "/usr/bin/promtool"],
    },
    Unpacked {
        directory: "resolved",
        packages: &["systemd-resolved", "libsystemd-shared"],
        programs: &["/usr/lib/systemd/systemd-resolved"],
    },
];

/// Unpacks those that are neither there nor installed.
pub fn unpack() -> Result<()> {
    ALL.iter().try_for_each(|it| it.unpack())
}

impl Unpacked {
    fn unpack(&self) -> Result<()> {
        let place = tools().join(self.directory);
        let is_installed = self.programs.iter().all(|path| Path::new(path).exists());
        if place.exists() || is_installed {
            return Ok(());
        }
        let names = self.packages.join(" ");
        if !Path::new("/usr/bin/apt-get").exists() {
            let programs = self.programs.join(" ");
            bail!("{names} is missing and there is no apt-get: install {programs}");
        }
        // A directory of its own, renamed when it is complete: an interrupted run leaves no half of it.
        let unpacked = place.with_extension("new");
        let _ = fs::remove_dir_all(&unpacked);
        fs::create_dir_all(&unpacked).with_context(|| format!("create {}", unpacked.display()))?;
        let download = || {
            let mut command = Command::new("apt-get");
            command.args(["-qq", "download"]).args(self.packages);
            command.current_dir(&unpacked);
            let name = format!("downloading {names}");
            progress::run(&name, "some seconds", &mut command)
        };
        download().or_else(|_| {
            // The machine's lists of packages are missing or old.
            let mut update = Command::new("apt-get");
            progress::run(
                "reading package lists",
                "some seconds",
                update.args(["-qq", "update"]),
            )?;
            download()
        })?;
        let files = fs::read_dir(&unpacked)?.flatten().map(|entry| entry.path());
        let is_archive = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "deb");
        for archive in files.filter(is_archive).collect::<Vec<_>>() {
            let mut command = Command::new("dpkg-deb");
            command.arg("--extract").args([&archive, &unpacked]);
            progress::run("unpacking", "some seconds", &mut command)?;
            fs::remove_file(archive)?;
        }
        fs::rename(&unpacked, &place).with_context(|| format!("rename to {}", place.display()))
    }
}
