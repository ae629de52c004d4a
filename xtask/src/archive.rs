//! Archives whose bytes depend on their content only: sorted, without owners, and of the commit's date.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{build::source_date, run::must};

/// Packs what a directory contains.
pub fn tar(dir: &Path, archive: &Path) -> Result<()> {
    must(&mut packing(dir, archive))
}

/// The same, compressed.
pub fn tar_gz(dir: &Path, archive: &Path) -> Result<()> {
    // Without a name and a time in the header.
    must(packing(dir, archive).args(["--use-compress-program", "gzip -9n"]))
}

fn packing(dir: &Path, archive: &Path) -> Command {
    let mut command = Command::new("sh");
    // Names without `./`, and no entry for the directory itself, as others pack charts and images.
    command.args([
        "-c",
        "cd \"$1\" && shift && exec tar \"$@\" --create -- *",
        "tar",
    ]);
    command
        .arg(dir)
        .arg("--file")
        .arg(archive)
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .args(["--format=gnu", "--mode=u+rwX,go+rX,go-w"])
        .arg(format!("--mtime=@{}", source_date()));
    command
}
