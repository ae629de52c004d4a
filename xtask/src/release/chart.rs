//! The chart, as `helm package` checks it and as registries keep it, and the plain manifests in one file.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::place::{Release, VERSION, copy_tree, sha256};
use crate::{
    archive,
    run::{answer, must, root, tools},
};

/// Helm's own engine packages the chart, which checks it.
const PACKAGE: &str = "\
import asyncio, sys
from helm_sdkpy import Configuration, Package
asyncio.run(Package(Configuration()).run(sys.argv[1], dest_dir=sys.argv[2]))
";

/// The repository in the chart's values.
const REPOSITORY: &str = "repository: sidetrack\n";

/// The chart as an archive and as an artifact for registries.
pub fn package(release: &Release<'_>) -> Result<()> {
    let dir = release.scratch("chart")?;
    let chart = dir.join("sidetrack");
    copy_tree(&root().join("deploy/chart"), &chart)?;
    let image = &release.options.image;
    replace(
        &chart.join("values.yaml"),
        REPOSITORY,
        &format!("repository: {image}\n"),
    )?;
    replace(
        &chart.join("README.md"),
        "| `image.repository` | `sidetrack` |",
        &format!("| `image.repository` | `{image}` |"),
    )?;
    let packaged = release.scratch("chart-packaged")?;
    must(
        Command::new(tools().join("python/bin/python"))
            .args(["-c", PACKAGE])
            .args([&chart, &packaged]),
    )
    .context("package the chart")?;
    // Helm writes the time into its archive. What is in it is packed again.
    let name = format!("sidetrack-{VERSION}.tgz");
    let content = release.scratch("chart-content")?;
    must(
        Command::new("tar")
            .arg("-xzf")
            .arg(packaged.join(&name))
            .arg("-C")
            .arg(&content),
    )?;
    let archive = release.files.join(&name);
    archive::tar_gz(&content, &archive)?;
    artifact(release, &chart, &archive)
}

fn replace(path: &Path, old: &str, new: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    if !text.contains(old) {
        bail!("{} has no {old:?}", path.display());
    }
    fs::write(path, text.replace(old, new)).with_context(|| format!("write {}", path.display()))
}

/// An OCI layout with the chart, as `helm push` would leave it in a registry.
fn artifact(release: &Release<'_>, chart: &Path, archive: &Path) -> Result<()> {
    let layout = release.scratch("chart-layout")?;
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    // A file's descriptor, and the file where it belongs.
    let add = |path: &Path, media_type: &str| -> Result<serde_json::Value> {
        let sum = sha256(path)?;
        let size = fs::copy(path, blobs.join(&sum))?;
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{sum}"), "size": size}))
    };
    let scratch = release.work.join("chart-part.json");
    let text = fs::read_to_string(chart.join("Chart.yaml"))?;
    fs::write(&scratch, metadata(&text)?.to_string())?;
    let config = add(&scratch, "application/vnd.cncf.helm.config.v1+json")?;
    let layer = add(
        archive,
        "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
    )?;
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer],
        "annotations": {"org.opencontainers.image.title": "sidetrack", "org.opencontainers.image.version": VERSION},
    });
    fs::write(&scratch, manifest.to_string())?;
    let mut entry = add(&scratch, media_type)?;
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": VERSION});
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry],
    });
    fs::write(layout.join("index.json"), index.to_string())?;
    fs::write(
        layout.join("oci-layout"),
        json!({"imageLayoutVersion": "1.0.0"}).to_string(),
    )?;
    let name = format!("sidetrack-chart-{VERSION}.oci.tar");
    archive::tar(&layout, &release.files.join(name))
}

/// Chart.yaml as JSON: it has one text or list of words on each line.
fn metadata(text: &str) -> Result<serde_json::Value> {
    let mut fields = serde_json::Map::new();
    for line in text.lines() {
        let (key, value) = line
            .split_once(": ")
            .with_context(|| format!("Chart.yaml: not understood: {line}"))?;
        let list = value.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let value = match list {
            Some(words) => words.split(", ").collect::<Vec<_>>().into(),
            None => value.trim_matches('"').into(),
        };
        fields.insert(key.to_owned(), value);
    }
    Ok(fields.into())
}

/// `install.yaml`: what kustomize makes of `deploy/kubernetes` with the image's name.
pub fn manifests(release: &Release<'_>) -> Result<()> {
    let dir = release.scratch("manifests")?;
    let plain = root().join("deploy/kubernetes");
    let kustomization = format!(
        "kind: Kustomization\nresources: [{}]\nimages: [{{name: sidetrack, newName: {}, newTag: {VERSION}}}]\n",
        // kustomize takes relative paths only; the directory is two levels below target/.
        Path::new("../../..")
            .join(plain.strip_prefix(root())?)
            .display(),
        release.options.image
    );
    fs::write(dir.join("kustomization.yaml"), kustomization)?;
    let mut kustomize = Command::new("kubectl");
    kustomize
        .args(["kustomize", "--load-restrictor=LoadRestrictionsNone"])
        .arg(&dir);
    let text = answer(&mut kustomize).context("`kubectl kustomize` failed")?;
    let head = format!("# sidetrack {VERSION}: kubectl apply -f install.yaml\n");
    let path = release.files.join("install.yaml");
    fs::write(&path, head + &text + "\n").with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests;
