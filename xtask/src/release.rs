//! `cargo xtask release`: every file of a release, from a checkout without changes. The same commit gives the same bytes, in
//! whatever folder, with the same compilers. Nothing is uploaded or signed.

mod chart;
mod packages;
mod records;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    arch::Arch,
    build, image,
    progress::Steps,
    run::{answer, require_root, root},
    setup::{self, Needs},
};

/// The version of everything.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Args)]
pub struct Options {
    /// Where the files will be downloaded from; the manifest of krew names it
    #[arg(long, value_name = "URL", default_value = concat!("https://example.com/sidetrack/v", env!("CARGO_PKG_VERSION")))]
    url: String,
    /// The image's name in the registry that it will be pushed to; the chart and install.yaml name it
    #[arg(
        long,
        value_name = "NAME",
        default_value = "registry.example.com/mesh/sidetrack"
    )]
    image: String,
    /// Who builds, as an URI for the provenance
    #[arg(
        long,
        value_name = "URI",
        default_value = "https://example.com/sidetrack/by-hand"
    )]
    builder: String,
    /// An architecture; repeatable [default: all]
    #[arg(long = "arch", value_enum)]
    archs: Vec<Arch>,
    /// Build although the checkout has changes; the version says so
    #[arg(long)]
    allow_dirty: bool,
}

/// Where things are while a release is made.
#[derive(Debug)]
struct Release<'a> {
    options: &'a Options,
    archs: Vec<Arch>,
    commit: String,
    /// The commit's time, in seconds.
    date: String,
    /// The result.
    files: PathBuf,
    /// What is not part of the result.
    work: PathBuf,
}

/// Makes the files and lists them.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("release")?;
    let release = Release::begin(options)?;
    let steps = Steps::new();
    let tools = packages::install_tools(&steps)?;
    let record_tools = records::install_tools(&steps)?;
    setup::python(Needs::Tests, &steps)?;
    drop(steps);
    for arch in &release.archs {
        build::statically_linked(*arch)?;
    }
    // Those on whose pages and scripts everything depends.
    let own = build::statically_linked(Arch::native())?;
    let share = release.work.join("share");
    for program in ["sidetrack", "kubectl-sidetrack"] {
        image::documents(&own.join(program), &share.join(program))?;
    }
    records::licenses(&release, &record_tools)?;
    for arch in &release.archs {
        packages::tarballs(&release, *arch)?;
        packages::deb(&release, &tools, *arch)?;
        packages::rpm(&release, &tools, *arch)?;
    }
    packages::krew(&release)?;
    let archive = release.files.join(format!("sidetrack-{VERSION}.oci.tar"));
    let tag = format!("{}:{VERSION}", options.image);
    let sizes = image::build(&release.archs, &tag, &archive, false)?;
    chart::package(&release)?;
    chart::manifests(&release)?;
    records::materials(&release, &record_tools)?;
    records::notes(&release)?;
    records::provenance(&release)?;
    records::sums(&release)?;
    release.show(&sizes)
}

impl<'a> Release<'a> {
    fn begin(options: &'a Options) -> Result<Self> {
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
    fn scratch(&self, name: &str) -> Result<PathBuf> {
        let dir = self.work.join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    /// A tool that takes the date from its environment.
    fn tool(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command
            .current_dir(root())
            .env("SOURCE_DATE_EPOCH", &self.date);
        command
    }

    /// The files of the result so far, by name.
    fn listing(&self) -> Result<Vec<PathBuf>> {
        let mut paths: Vec<PathBuf> = fs::read_dir(&self.files)?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        paths.sort();
        Ok(paths)
    }

    fn show(&self, sizes: &[(Arch, u64)]) -> Result<ExitCode> {
        println!("\n{:<54} {:>10}  SHA-256", "FILE", "BYTES");
        for path in self.listing()? {
            let bytes = fs::metadata(&path)?.len();
            println!(
                "{:<54} {bytes:>10}  {}",
                name_of(&path),
                &sha256(&path)?[..16]
            );
        }
        for (arch, bytes) in sizes {
            println!(
                "image for {}: {:.1} MB compressed",
                arch.name(),
                *bytes as f64 / 1e6
            );
        }
        println!("\nin {}, of commit {}", self.files.display(), self.commit);
        Ok(ExitCode::SUCCESS)
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

/// A file's sum.
fn sha256(path: &Path) -> Result<String> {
    let line = answer(Command::new("sha256sum").arg(path));
    let line = line.with_context(|| format!("sum up {}", path.display()))?;
    let sum = line.split(' ').next();
    Ok(sum.context("sha256sum printed nothing")?.to_owned())
}
