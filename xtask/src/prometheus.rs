//! Debian's Prometheus and promtool, for the tests of the metrics.
//!
//! The package is unpacked, not installed: an installation would start Prometheus as a service of the
//! machine.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{progress::Steps, run::tools};

/// Unpacks both, unless they are there or installed.
pub fn unpack(steps: &Steps) -> Result<()> {
    let place = tools().join("prometheus");
    if is_complete(&place) || is_complete(Path::new("/")) {
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "Prometheus is missing and there is no apt-get: install /usr/bin/prometheus and /usr/bin/promtool"
        );
    }
    // A directory of its own, renamed when it is complete: an interrupted run leaves no half of it.
    let unpacked = tools().join("prometheus.new");
    let _ = fs::remove_dir_all(&unpacked);
    fs::create_dir_all(&unpacked).with_context(|| format!("create {}", unpacked.display()))?;
    let download = || {
        let mut command = Command::new("apt-get");
        command
            .args(["-qq", "download", "prometheus"])
            .current_dir(&unpacked);
        steps.run("downloading Prometheus", "some seconds", &mut command)
    };
    download().or_else(|_| {
        // The machine's lists of packages are missing or old.
        let mut update = Command::new("apt-get");
        steps.run(
            "reading package lists",
            "some seconds",
            update.args(["-qq", "update"]),
        )?;
        download()
    })?;
    let archives = fs::read_dir(&unpacked)?.flatten().map(|entry| entry.path());
    let archive = archives
        .into_iter()
        .find(|path| path.extension().is_some_and(|it| it == "deb"));
    let archive = archive.context("apt-get download prometheus left no package")?;
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").args([&archive, &unpacked]);
    steps.run("unpacking Prometheus", "some seconds", &mut command)?;
    fs::remove_file(archive)?;
    let _ = fs::remove_dir_all(&place);
    fs::rename(&unpacked, &place).with_context(|| format!("rename to {}", place.display()))
}

fn is_complete(root: &Path) -> bool {
    ["prometheus", "promtool"]
        .iter()
        .all(|name| root.join("usr/bin").join(name).exists())
}
