//! Installs, changes and uninstalls the chart by Helm's engine, and the plain manifests by kustomize.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use lab::{deploy::checkout, runtime::run_with};
use serde_json::{Value, json};

use crate::kubectl::Kubectl;

/// Where sidetrack is installed.
pub const NAMESPACE: &str = "sidetrack-system";

/// Helm.
#[derive(Clone, Debug)]
pub struct Helm {
    /// With the engine.
    pub python: PathBuf,
    pub kubeconfig: PathBuf,
    /// sidetrack's image.
    pub image: String,
}

impl Helm {
    /// `helm install`, into a namespace that exists.
    pub fn install(&self, values: &Value) -> Result<()> {
        let mut all = self.image_values();
        merge(&mut all, values);
        self.run("install", Some(&all))
    }

    /// `helm upgrade --reset-then-reuse-values`.
    pub fn upgrade(&self, values: &Value) -> Result<()> {
        self.run("upgrade", Some(values))
    }

    /// `helm upgrade` as somebody types it who forgets what was set before.
    pub fn upgrade_forgetfully(&self) -> Result<()> {
        self.run("upgrade-reset", Some(&self.image_values()))
    }

    /// `helm uninstall`.
    pub fn uninstall(&self) -> Result<()> {
        self.run("uninstall", None)
    }

    fn image_values(&self) -> Value {
        let (repository, tag) = name_and_tag(&self.image);
        json!({"image": {"repository": repository, "tag": tag}})
    }

    fn run(&self, action: &str, values: Option<&Value>) -> Result<()> {
        let mut command = std::process::Command::new(&self.python);
        command
            .arg(checkout("tests/tools/e2e/helm.py"))
            .args([action, NAMESPACE])
            .arg(&self.kubeconfig);
        if let Some(values) = values {
            command
                .arg(checkout("deploy/chart"))
                .arg(values.to_string());
        }
        let output = run_with(&mut command, b"")?;
        if !output.status.success() {
            bail!(
                "helm {action}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }
}

/// The registry and path of an image, and its tag.
fn name_and_tag(image: &str) -> (&str, &str) {
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

/// Sets the second's fields in the first.
fn merge(into: &mut Value, from: &Value) {
    match (into.as_object_mut(), from.as_object()) {
        (Some(fields), Some(others)) => {
            for (name, value) in others {
                merge(fields.entry(name).or_insert(Value::Null), value);
            }
        }
        _ => *into = from.clone(),
    }
}

/// A kustomization of the user's: the plain manifests with components, and the image.
#[derive(Debug)]
pub struct Kustomization {
    dir: tempfile::TempDir,
}

impl Kustomization {
    /// `base` is a directory below `deploy/kubernetes`, or empty.
    pub fn new(base: &str, components: &[&str], image: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // kustomize takes relative paths only.
        let up = "../".repeat(fs::canonicalize(dir.path())?.components().count() - 1);
        let manifests = fs::canonicalize(checkout("deploy/kubernetes"))?;
        let manifests = format!("{up}{}", manifests.strip_prefix("/")?.display());
        let components: Vec<String> = components
            .iter()
            .map(|name| format!("{manifests}/components/{name}"))
            .collect();
        let (name, tag) = name_and_tag(image);
        let mut text = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [format!("{manifests}/{base}")],
            "components": components,
            "images": [{"name": "sidetrack", "newName": name, "newTag": tag}],
        });
        if components.iter().any(|path| path.ends_with("/webhook")) {
            // Other than components, these files must be in or below the kustomization's own directory.
            let image = checkout("deploy/kubernetes/components/webhook/image.yaml");
            fs::copy(image, dir.path().join("image.yaml"))?;
            text["replacements"] = json!([{"path": "image.yaml"}]);
        }
        fs::write(dir.path().join("kustomization.yaml"), text.to_string())?;
        Ok(Self { dir })
    }

    fn path(&self) -> Result<&str> {
        Path::to_str(self.dir.path()).context("a path in UTF-8")
    }

    /// `kubectl apply -k`.
    pub fn apply(&self, kube: &Kubectl) -> Result<()> {
        kube.run(&["apply", "-k", self.path()?]).map(drop)
    }

    /// `kubectl delete -k`.
    pub fn delete(&self, kube: &Kubectl) -> Result<()> {
        kube.run(&[
            "delete",
            "-k",
            self.path()?,
            "--ignore-not-found",
            "--wait=false",
        ])
        .map(drop)
    }
}
