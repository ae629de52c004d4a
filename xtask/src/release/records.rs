//! What lets others verify a release: sums, bills of materials, licenses, provenance, and the notes of the changelog.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::place::{Release, VERSION, name_of, sha256};
use crate::{
    arch::Arch,
    crates::Program,
    cross::Userland,
    run::{answer, must, root},
    toolchain::LINKER_VERSION,
};

const BOM: Program = Program {
    name: "cargo-cyclonedx",
    version: "0.5.9",
    options: &["--debug", "--config", "profile.dev.debug=false"],
    estimate: "a minute",
};

/// Optimized, since it compares the text of every license with all that it has.
const ABOUT: Program = Program {
    name: "cargo-about",
    version: "0.9.3",
    options: &[
        "--features",
        "cli",
        "--config",
        "profile.release.lto=false",
        "--config",
        "profile.release.codegen-units=16",
    ],
    estimate: "three minutes",
};

/// The programs that have a bill of materials, with the directories of their packages.
const PROGRAMS: [(&str, &str); 3] = [
    ("sidetrack", "agent"),
    ("sidetrack-webhook", "agent/webhook"),
    ("kubectl-sidetrack", "agent/kubectl"),
];

/// How cargo-cyclonedx ends the names of its files.
const BOM_SUFFIX: &str = "_bin.cdx.json";

/// What writes the records.
#[derive(Debug)]
pub struct Tools {
    bom: PathBuf,
    about: PathBuf,
}

pub fn install_tools() -> Result<Tools> {
    Ok(Tools {
        bom: BOM.install()?,
        about: ABOUT.install()?,
    })
}

/// The texts of the licenses of all crates inside the binaries.
pub fn licenses(release: &Release<'_>, tools: &Tools) -> Result<()> {
    let mut command = release.tool(&tools.about);
    command
        .args(["generate", "--locked", "--offline", "--fail"])
        .args(["--config", "deploy/release/about.toml"])
        .args(["--workspace", "--output-file"])
        .arg(release.files.join("THIRD-PARTY-LICENSES.txt"))
        .arg("deploy/release/about.hbs");
    must(&mut command).context("collect licenses")
}

/// A CycloneDX file for each program and architecture. The image holds the first two programs and nothing else that
/// somebody else wrote, so that theirs are the image's.
pub fn materials(release: &Release<'_>, tools: &Tools) -> Result<()> {
    for arch in &release.archs {
        let mut command = release.tool(&tools.bom);
        command
            .args([
                "cyclonedx",
                "--quiet",
                "--format",
                "json",
                "--spec-version",
                "1.5",
            ])
            .args(["--describe", "binaries", "--no-build-deps"])
            .args(["--manifest-path", "agent/Cargo.toml"])
            .args(["--target", &arch.triple()]);
        let written = must(&mut command).context("list the materials");
        let outcome = written.and_then(|()| take(release, *arch));
        // It writes into every package of the workspace.
        let mut find = Command::new("find");
        find.current_dir(root())
            .args([".", "-path", "./target", "-prune", "-o", "-name"])
            // Not -delete, which makes find walk into target/ in spite of -prune, and fail.
            .args([&format!("*{BOM_SUFFIX}"), "-exec", "rm", "{}", "+"]);
        must(&mut find)?;
        outcome?;
    }
    Ok(())
}

fn take(release: &Release<'_>, arch: Arch) -> Result<()> {
    for (program, package) in PROGRAMS {
        let from = root().join(package).join(format!("{program}{BOM_SUFFIX}"));
        let text = fs::read_to_string(&from).with_context(|| format!("read {}", from.display()))?;
        // Identifiers of the workspace's own packages name the folder of the checkout.
        let text = text.replace(&root().display().to_string(), "/sidetrack");
        let name = format!("{program}-{VERSION}-linux-{}.cdx.json", arch.name());
        fs::write(release.files.join(name), text)?;
    }
    Ok(())
}

/// The notes of a release. They are required.
pub fn notes(is_trial: bool) -> Result<String> {
    let path = root().join("CHANGELOG.md");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    notes_in(&text, is_trial)
}

/// The version's section of a changelog. For a trial, also what is not released yet.
fn notes_in(changelog: &str, is_trial: bool) -> Result<String> {
    let unreleased = || section(changelog, "Unreleased").filter(|_| is_trial);
    section(changelog, VERSION)
        .or_else(unreleased)
        .with_context(|| {
            format!(
                "CHANGELOG.md has no text below `## [{VERSION}]`: a release needs notes. \
                 Rename the section \"Unreleased\", or write one"
            )
        })
}

/// Writes the notes into a file of the release.
pub fn write_notes(release: &Release<'_>, notes: &str) -> Result<()> {
    let path = release.files.join(format!("CHANGES-{VERSION}.md"));
    fs::write(&path, notes).with_context(|| format!("write {}", path.display()))
}

/// What stands below `## [name]`, up to the next section. None if that is headings only.
fn section(text: &str, name: &str) -> Option<String> {
    let heading = format!("## [{name}]");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&heading));
    lines.next()?;
    let content: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    let is_text = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    content.iter().find(|line| is_text(line))?;
    Some(content.join("\n").trim().to_owned() + "\n")
}

/// An in-toto statement in the form of SLSA: which files were built, from what, with what. It is not signed.
pub fn provenance(release: &Release<'_>) -> Result<()> {
    let mut subjects = Vec::new();
    for path in release.listing()? {
        subjects.push(json!({"name": name_of(&path), "digest": {"sha256": sha256(&path)?}}));
    }
    let mut compilers = serde_json::Map::new();
    for arch in &release.archs {
        compilers.insert(arch.triple(), Userland::find(*arch)?.version()?.into());
    }
    let tool = |program: &str| answer(Command::new(program).arg("--version"));
    let first = |text: Option<String>| text.and_then(|it| it.lines().next().map(str::to_owned));
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{}#cargo-xtask-release", release.options.builder),
                "externalParameters": {
                    "command": "cargo xtask release", "url": release.options.url, "image": release.options.image,
                    "archs": release.archs.iter().map(|arch| arch.name()).collect::<Vec<_>>(),
                },
                "internalParameters": {"SOURCE_DATE_EPOCH": release.date},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": release.commit}},
                    {"name": "Cargo.lock", "digest": {"sha256": sha256(&root().join("Cargo.lock"))?}},
                ],
            },
            "runDetails": {
                "builder": {
                    "id": release.options.builder,
                    "version": {
                        "rustc": compilers, "bpf-linker": LINKER_VERSION,
                        "buildah": first(tool("buildah")), "tar": first(tool("tar")), "gzip": first(tool("gzip")),
                    },
                },
            },
        },
    });
    let path = release
        .files
        .join(format!("sidetrack-{VERSION}.provenance.json"));
    fs::write(&path, serde_json::to_string_pretty(&statement)? + "\n")
        .with_context(|| format!("write {}", path.display()))
}

/// The sums of all files, for `sha256sum --check`.
pub fn sums(release: &Release<'_>) -> Result<()> {
    let mut text = String::new();
    for path in release.listing()? {
        text += &format!("{}  {}\n", sha256(&path)?, name_of(&path));
    }
    let path = release.files.join("SHA256SUMS");
    if path.exists() {
        bail!("{} is there already", path.display());
    }
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests;
