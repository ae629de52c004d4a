//! `cargo xtask packages`: the packages of a release in root file systems of the distributions: install, run, enroll a pod,
//! upgrade and downgrade, purge.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    apt::Mirrors,
    arch::Arch,
    run::{must, require_root, root},
    setup,
};

/// Where the packages are tried: Debian's releases, and rpm as Debian has it.
const ROOTS: [(&str, &str, &str); 3] = [
    ("Debian 12", "bookworm", "deb"),
    ("Debian 13", "trixie", "deb"),
    ("rpm", "bookworm", "rpm"),
];

/// systemd to check the unit, rpm, and what the script runs inside.
const INCLUDED: &str = "--include=systemd,rpm,util-linux";

#[derive(Debug, Args)]
pub struct Options {
    /// Files of an earlier release: packages are upgraded from it, and back
    #[arg(long, value_name = "DIR")]
    previous: Option<PathBuf>,
}

/// Tries the packages in `target/release-files`.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("packages")?;
    setup::for_packages()?;
    let files = root().join("target/release-files");
    let dir = root().join("target/packages");
    fs::create_dir_all(&dir)?;
    let script = dir.join("check.sh");
    fs::write(&script, include_str!("packages/check.sh"))?;
    let mut failed = 0;
    for (name, suite, kind) in ROOTS {
        println!("== {name}, .{kind}");
        let tree = unpacked(&dir, suite)?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--net", "--propagation", "private", "sh"])
            .arg(&script)
            .arg(&tree)
            .arg(kind)
            .arg(find(&files, kind)?);
        if let Some(previous) = &options.previous {
            command.arg(find(&fs::canonicalize(previous)?, kind)?);
        }
        let passed = command.status().context("run unshare")?.success();
        failed += usize::from(!passed);
        fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    }
    println!("\n{} passed, {failed} failed", ROOTS.len() - failed);
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// This machine's package in a directory.
fn find(files: &Path, kind: &str) -> Result<PathBuf> {
    let arch = match kind {
        "deb" => Arch::native().name(),
        _ => Arch::native().machine(),
    };
    let end = format!("{arch}.{kind}");
    let mut found: Vec<PathBuf> = fs::read_dir(files)
        .with_context(|| format!("list {}: `cargo xtask release` makes it", files.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(&end))
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(path), true) => Ok(path),
        _ => bail!("not one {end} in {}", files.display()),
    }
}

/// A fresh root file system of a suite.
fn unpacked(dir: &Path, suite: &str) -> Result<PathBuf> {
    let archive = dir.join(format!("{suite}.tar"));
    if !archive.exists() {
        let source = Mirrors::find()?.source(suite)?;
        let aside = archive.with_extension("new.tar");
        let mut command = Command::new("mmdebstrap");
        command
            .args([
                "--quiet",
                "--variant=essential",
                "--skip=cleanup/apt/lists",
                INCLUDED,
                suite,
            ])
            .arg(&aside)
            .arg(source.trim());
        must(&mut command).with_context(|| format!("make a root file system of {suite}"))?;
        fs::rename(aside, &archive)?;
    }
    let tree = dir.join(format!("root-{suite}"));
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    }
    fs::create_dir_all(&tree)?;
    must(
        Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(&tree),
    )?;
    Ok(tree)
}
