//! Where things are while a release is made, and what its parts have in common.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use crate::{
    arch::Arch,
    build,
    image::Image,
    run::{answer, must, root},
};

/// The version of everything.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Args)]
pub struct Options {
    /// The tag that the release is for: `v` and the workspace's version. CHANGELOG.md must have a section of that version
    /// [default: a trial, whose notes may be the section "Unreleased"]
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    /// Only check the tag and print the release notes; needs no root
    #[arg(long, requires = "tag")]
    pub check: bool,
    /// Where the files will be downloaded from; the manifest of krew names it
    #[arg(long, value_name = "URL", default_value = concat!("https://example.com/sidetrack/v", env!("CARGO_PKG_VERSION")))]
    pub url: String,
    /// The image's name in the registry that it will be pushed to; the chart and install.yaml name it by digest
    #[arg(
        long,
        value_name = "NAME",
        default_value = "registry.example.com/mesh/sidetrack"
    )]
    pub image: String,
    /// Who builds, as an URI for the provenance
    #[arg(
        long,
        value_name = "URI",
        default_value = "https://example.com/sidetrack/by-hand"
    )]
    pub builder: String,
    /// An architecture; repeatable [default: all]
    #[arg(long = "arch", value_enum)]
    archs: Vec<Arch>,
    /// Build although the checkout has changes; the version says so
    #[arg(long)]
    allow_dirty: bool,
}

/// Where things are while a release is made.
#[derive(Debug)]
pub struct Release<'a> {
    /// What was asked for.
    pub options: &'a Options,
    /// What it is for.
    pub archs: Vec<Arch>,
    /// The checkout's.
    pub commit: String,
    /// The commit's time, in seconds.
    pub date: String,
    /// The result.
    pub files: PathBuf,
    /// What is not part of the result.
    pub work: PathBuf,
}

impl<'a> Release<'a> {
    /// Looks at the checkout and empties the directories.
    pub fn begin(options: &'a Options) -> Result<Self> {
        let git = |words: &[&str]| {
            answer(Command::new("git").current_dir(root()).args(words))
                .with_context(|| format!("`git {}` failed", words.join(" ")))
        };
        let changes = git(&["status", "--porcelain"])?;
        if !changes.is_empty() && !options.allow_dirty {
            bail!("the checkout has changes; commit them, or pass --allow-dirty:\n{changes}");
        }
        let mut archs = if options.archs.is_empty() {
            Arch::ALL.to_vec()
        } else {
            options.archs.clone()
        };
        archs.sort_unstable();
        archs.dedup();
        let own = Self {
            options,
            archs,
            commit: git(&["rev-parse", "HEAD"])?,
            date: build::source_date(),
            files: root().join("target/release-files"),
            work: root().join("target/release-work"),
        };
        for dir in [&own.files, &own.work] {
            let _ = fs::remove_dir_all(dir);
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(own)
    }

    /// An empty directory to put something together.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let dir = self.work.join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    /// A tool that takes the date from its environment.
    pub fn tool(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command
            .current_dir(root())
            .env("SOURCE_DATE_EPOCH", &self.date);
        command
    }

    /// The files of the result so far, by name.
    pub fn listing(&self) -> Result<Vec<PathBuf>> {
        let mut paths: Vec<PathBuf> = fs::read_dir(&self.files)?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        paths.sort();
        Ok(paths)
    }

    /// Lists what was made.
    pub fn show(&self, image: &Image) -> Result<ExitCode> {
        println!("\n{:<54} {:>10}  SHA-256", "FILE", "BYTES");
        for path in self.listing()? {
            let bytes = fs::metadata(&path)?.len();
            println!(
                "{:<54} {bytes:>10}  {}",
                name_of(&path),
                &sha256(&path)?[..16]
            );
        }
        for (arch, bytes) in &image.sizes {
            println!(
                "image for {}: {:.1} MB compressed",
                arch.name(),
                *bytes as f64 / 1e6
            );
        }
        println!("image: {}@{}", self.options.image, image.digest);
        println!("\nin {}, of commit {}", self.files.display(), self.commit);
        Ok(ExitCode::SUCCESS)
    }
}

/// Fails unless a tag names the workspace's version.
pub fn check_tag(tag: &str) -> Result<()> {
    ensure!(
        tag.strip_prefix('v') == Some(VERSION),
        "the tag {tag} is not v{VERSION}, the workspace's version: \
         change `version` in Cargo.toml, or tag another commit"
    );
    Ok(())
}

/// A file's name.
pub fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

/// A file's sum.
pub fn sha256(path: &Path) -> Result<String> {
    let line = answer(Command::new("sha256sum").arg(path));
    let line = line.with_context(|| format!("sum up {}", path.display()))?;
    let sum = line.split(' ').next();
    Ok(sum.context("sha256sum printed nothing")?.to_owned())
}

/// Copies a directory, links followed.
pub fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    let mut command = Command::new("cp");
    must(
        command
            .args(["--recursive", "--dereference"])
            .arg(from.join("."))
            .arg(to),
    )
}

#[cfg(test)]
mod tests;
