//! kubectl, as an administrator runs it.

use std::{
    fmt::Write as _,
    path::PathBuf,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use lab::runtime::run_with;
use serde_json::{Value, json};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Longest wait for a namespace with all its pods to be gone.
const GONE: Duration = Duration::from_secs(600);

/// A namespace whose pods may be privileged.
pub fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
    })
}

/// One cluster.
#[derive(Clone, Debug)]
pub struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
}

impl Kubectl {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--request-timeout=20s")
            .args(words);
        command
    }

    /// Runs it, whatever comes of it.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        run_with(&mut self.command(words), b"").context("run kubectl")
    }

    /// Its stdout; it must succeed.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        self.run_on(words, b"")
    }

    fn run_on(&self, words: &[&str], stdin: &[u8]) -> Result<String> {
        let output = run_with(&mut self.command(words), stdin).context("run kubectl")?;
        if !output.status.success() {
            bail!(
                "kubectl {}: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// One object or a list.
    pub fn get(&self, words: &[&str]) -> Result<Value> {
        let words = [&["get", "-o", "json"], words].concat();
        Ok(serde_json::from_str(&self.run(&words)?)?)
    }

    /// The items of a list.
    pub fn items(&self, words: &[&str]) -> Result<Vec<Value>> {
        let mut list = self.get(words)?;
        serde_json::from_value(list["items"].take()).context("a list")
    }

    /// Creates or changes objects.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let mut text = String::new();
        for object in objects {
            writeln!(text, "{object}\n---")?;
        }
        self.run_on(&["apply", "-f", "-"], text.as_bytes())
            .map(drop)
    }

    /// Runs a shell in a container.
    pub fn shell(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        script: &str,
    ) -> Result<String> {
        self.run(&[
            "-n", namespace, "exec", pod, "-c", container, "--", "sh", "-c", script,
        ])
    }

    /// Waits until something is so; what it gives then. The last reason is in the error.
    pub fn wait<T>(
        &self,
        what: &str,
        patience: Duration,
        look: impl Fn(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            let last = match look(self) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => "not yet".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            if start.elapsed() >= patience {
                bail!("{what}: not after {} s ({last})", patience.as_secs());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Waits for a workload's pods, such as `deployment/web`.
    pub fn rollout(&self, namespace: &str, workload: &str, patience: Duration) -> Result<()> {
        let timeout = format!("--timeout={}s", patience.as_secs());
        // Not --request-timeout: it watches.
        let output = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["-n", namespace, "rollout", "status", workload, &timeout])
            .output()?;
        if !output.status.success() {
            let pods = self
                .run(&["-n", namespace, "get", "pods,events"])
                .unwrap_or_default();
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("{workload} of {namespace}: {}\n{pods}", text.trim());
        }
        Ok(())
    }

    /// Sets or removes the label of a namespace.
    pub fn label(&self, namespace: &str, value: Option<&str>) -> Result<()> {
        const LABEL: &str = "sidetrack.dev/interception";
        let label = value.map_or_else(|| format!("{LABEL}-"), |value| format!("{LABEL}={value}"));
        self.run(&["label", "namespace", namespace, &label, "--overwrite"])
            .map(drop)
    }

    /// Deletes a namespace and waits until it is gone.
    pub fn delete_namespace(&self, namespace: &str) -> Result<()> {
        self.run(&[
            "delete",
            "namespace",
            namespace,
            "--ignore-not-found",
            "--wait=false",
        ])?;
        self.wait(&format!("namespace {namespace} is deleted"), GONE, |kube| {
            let remaining = kube.run(&["get", "namespace", namespace, "--ignore-not-found"])?;
            Ok(remaining.trim().is_empty().then_some(()))
        })
    }
}
