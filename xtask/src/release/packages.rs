//! Tarballs, packages of distributions, and the manifest by which krew installs the plugin.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::place::{Release, VERSION, copy_tree, sha256};
use crate::{
    arch::Arch,
    archive,
    crates::Program,
    image::install,
    run::{must, root},
};

const DEB: Program = Program {
    name: "cargo-deb",
    version: "3.8.0",
    options: &["--debug", "--config", "profile.dev.debug=false"],
    estimate: "two minutes",
};

const RPM: Program = Program {
    name: "cargo-generate-rpm",
    version: "0.21.1",
    options: &["--debug", "--config", "profile.dev.debug=false"],
    estimate: "a minute",
};

/// Texts that every archive has.
const LICENSES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "LICENSE.md"];

/// What makes packages.
#[derive(Debug)]
pub struct Tools {
    deb: PathBuf,
    rpm: PathBuf,
}

pub fn install_tools() -> Result<Tools> {
    Ok(Tools {
        deb: DEB.install()?,
        rpm: RPM.install()?,
    })
}

fn built(arch: Arch) -> PathBuf {
    root().join("target").join(arch.triple()).join("release")
}

/// The agent and the webhook with pages and scripts, and the plugin by itself as krew wants it.
pub fn tarballs(release: &Release<'_>, arch: Arch) -> Result<()> {
    let dir = release.scratch(&format!("tarball-{}", arch.name()))?;
    let top = dir.join(format!("sidetrack-{VERSION}-linux-{}", arch.name()));
    for program in ["sidetrack", "sidetrack-webhook"] {
        install(&built(arch).join(program), &top.join("bin").join(program))?;
    }
    copy_tree(&release.work.join("share/sidetrack"), &top.join("share"))?;
    copy_tree(&root().join("deploy/packages"), &top.join("packages"))?;
    for text in LICENSES
        .iter()
        .chain(&["LICENSE-GPL-2.0", "README.md", "CHANGELOG.md"])
    {
        install(&root().join(text), &top.join(text))?;
    }
    let third_party = release.files.join("THIRD-PARTY-LICENSES.txt");
    install(&third_party, &top.join("THIRD-PARTY-LICENSES.txt"))?;
    archive::tar_gz(&dir, &release.files.join(tarball("sidetrack", arch)))?;

    let dir = release.scratch(&format!("plugin-{}", arch.name()))?;
    let plugin = "kubectl-sidetrack";
    install(&built(arch).join(plugin), &dir.join(plugin))?;
    copy_tree(&release.work.join("share").join(plugin), &dir.join("share"))?;
    for text in LICENSES {
        install(&root().join(text), &dir.join(text))?;
    }
    install(&third_party, &dir.join("THIRD-PARTY-LICENSES.txt"))?;
    archive::tar_gz(&dir, &release.files.join(tarball(plugin, arch)))
}

fn tarball(program: &str, arch: Arch) -> String {
    format!("{program}-{VERSION}-linux-{}.tar.gz", arch.name())
}

/// What the .rpm has of the checkout: its description in `agent/Cargo.toml` names the copies.
const FROM_CHECKOUT: [&str; 4] = [
    "LICENSE.md",
    "deploy/config/mesh.yaml",
    "deploy/packages/sidetrack.service",
    "deploy/pods-dir/example.yaml",
];

/// Debian's package, as `agent/Cargo.toml` describes it.
pub fn deb(release: &Release<'_>, tools: &Tools, arch: Arch) -> Result<()> {
    let file = format!("sidetrack_{VERSION}-1_{}.deb", arch.name());
    let mut command = release.tool(&tools.deb);
    command
        .args(["deb", "--no-build", "--no-strip", "--package", "sidetrack"])
        .args(["--target", &arch.triple(), "--output"])
        .arg(release.files.join(file));
    must(&mut command)
}

/// The package of Fedora, SUSE and their relatives. Files that are younger than the commit get its time, older ones keep
/// theirs. That of a checkout is anyone's, so that what is packed of it is a copy.
pub fn rpm(release: &Release<'_>, tools: &Tools, arch: Arch) -> Result<()> {
    for name in FROM_CHECKOUT {
        install(
            &root().join(name),
            &release.work.join("checkout").join(name),
        )?;
    }
    let file = format!("sidetrack-{VERSION}-1.{}.rpm", arch.machine());
    let mut command = release.tool(&tools.rpm);
    command
        .args(["generate-rpm", "--package", "agent"])
        // A static binary requires nothing, and what the machine's own tools would find is another thing on each.
        .args(["--auto-req", "disabled", "--payload-compress", "zstd"])
        .args(["--source-date", &release.date])
        .args(["--target", &arch.triple(), "--output"])
        .arg(release.files.join(file));
    must(&mut command)
}

/// The manifest for the plugin.
pub fn krew(release: &Release<'_>) -> Result<()> {
    let mut sums = Vec::new();
    for arch in &release.archs {
        let file = release.files.join(tarball("kubectl-sidetrack", *arch));
        sums.push((*arch, sha256(&file)?));
    }
    let text = serde_saphyr::to_string(&plugin(&release.options.url, &sums))?;
    let path = release.files.join("krew-sidetrack.yaml");
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// The same as an object, with the sums of the archives.
fn plugin(url: &str, sums: &[(Arch, String)]) -> Value {
    let files = ["kubectl-sidetrack", "LICENSE-MIT", "LICENSE-APACHE"];
    let files = files.map(|from| json!({"from": from, "to": "."}));
    let platform = |(arch, sum): &(Arch, String)| {
        json!({
            "selector": {"matchLabels": {"os": "linux", "arch": arch.name()}},
            "uri": format!("{url}/{}", tarball("kubectl-sidetrack", *arch)),
            "sha256": sum,
            "bin": "kubectl-sidetrack",
            "files": files,
        })
    };
    json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "sidetrack"},
        "spec": {
            "version": format!("v{VERSION}"),
            "shortDescription": "Show the sidetrack agents of a whole cluster",
            "description": "Asks the sidetrack agents of all nodes through the API server: which pods are intercepted,\n\
                            by which rules, and why connections were refused.\n",
            "platforms": sums.iter().map(platform).collect::<Vec<_>>(),
        },
    })
}

#[cfg(test)]
mod tests;
