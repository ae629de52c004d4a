//! The chart, as `helm package` checks it, and the plain manifests in one file.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::place::{Release, VERSION, copy_tree};
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

/// The chart as an archive. Its values name the image by digest.
pub fn package(release: &Release<'_>, digest: &str) -> Result<()> {
    let dir = release.scratch("chart")?;
    let chart = dir.join("sidetrack");
    copy_tree(&root().join("deploy/chart"), &chart)?;
    let image = &release.options.image;
    edit(&chart.join("values.yaml"), |it| values(it, image, digest))?;
    edit(&chart.join("README.md"), |it| readme(it, image, digest))?;
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
    archive::tar_gz(&content, &archive)
}

fn edit(path: &Path, change: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let text = change(&text).with_context(|| format!("edit {}", path.display()))?;
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// The chart's values with an image. They are edited as text because their comments document them; what was written is
/// read back.
fn values(text: &str, image: &str, digest: &str) -> Result<String> {
    let text = text
        .replacen(
            "\n  repository: sidetrack\n",
            &format!("\n  repository: {image}\n"),
            1,
        )
        .replacen("\n  digest: \"\"\n", &format!("\n  digest: {digest}\n"), 1);
    let written: Value = serde_saphyr::from_str(&text)?;
    let written = &written["image"];
    ensure!(
        written["repository"] == image && written["digest"] == digest,
        "its image is {written}"
    );
    Ok(text)
}

/// The table of these values.
fn readme(text: &str, image: &str, digest: &str) -> Result<String> {
    let mut text = text.to_owned();
    for (value, default, new) in [
        ("repository", "sidetrack", image),
        ("digest", "\"\"", digest),
    ] {
        let old = format!("| `image.{value}` | `{default}` |");
        ensure!(text.contains(&old), "there is no {old}");
        text = text.replace(&old, &format!("| `image.{value}` | `{new}` |"));
    }
    Ok(text)
}

/// `install.yaml`: what kustomize makes of `deploy/kubernetes` with the image's name and digest.
pub fn manifests(release: &Release<'_>, digest: &str) -> Result<()> {
    let dir = release.scratch("manifests")?;
    let image = &release.options.image;
    fs::write(
        dir.join("kustomization.yaml"),
        kustomization(image, digest)?,
    )?;
    let mut kustomize = Command::new("kubectl");
    kustomize
        .args(["kustomize", "--load-restrictor=LoadRestrictionsNone"])
        .arg(&dir);
    let text = answer(&mut kustomize).context("`kubectl kustomize` failed")?;
    require_image(&text, &format!("{image}@{digest}")).context("install.yaml")?;
    let head = format!("# sidetrack {VERSION}: kubectl apply -f install.yaml\n");
    let path = release.files.join("install.yaml");
    fs::write(&path, head + &text + "\n").with_context(|| format!("write {}", path.display()))
}

fn kustomization(image: &str, digest: &str) -> Result<String> {
    let content = json!({
        "kind": "Kustomization",
        // kustomize takes relative paths only; the directory is two levels below target/.
        "resources": ["../../../deploy/kubernetes"],
        "images": [{"name": "sidetrack", "newName": image, "digest": digest}],
    });
    Ok(serde_saphyr::to_string(&content)?)
}

/// Fails unless every container of some manifests has one image.
fn require_image(manifests: &str, image: &str) -> Result<()> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(manifests)?;
    let mut found = Vec::new();
    objects.iter().for_each(|it| images(it, &mut found));
    ensure!(
        !found.is_empty() && found.iter().all(|it| *it == image),
        "the images are {found:?}, not only {image}"
    );
    Ok(())
}

fn images<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|it| images(it, found)),
        Value::Object(fields) => {
            found.extend(fields.get("image").and_then(Value::as_str));
            fields.values().for_each(|it| images(it, found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
