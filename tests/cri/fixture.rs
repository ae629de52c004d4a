//! A node of a cluster: containerd, an agent, the API server it follows, and an outside for the pods to
//! talk to.

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra, nothing_remains},
    apiserver::ApiServer,
    network::{Lab, PodNet},
    protocol::ROOT,
};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{containerd::Containerd, kubelet::Pod};

/// An address outside the pods; port 80 is served there.
pub const VIP: &str = "10.109.118.31";
/// How long ADD waits for an agent, in seconds: two pods wait in vain here.
const WAIT_TIMEOUT: &str = "3";

/// Fields drop in order.
#[derive(Debug)]
pub struct Fixture {
    agent: Mutex<Option<Agent>>,
    /// The API server.
    pub api: ApiServer,
    /// Serves [`VIP`], and dials pods.
    pub outside: Actor,
    /// The runtime.
    pub containerd: Containerd,
    /// The network around it.
    pub lab: Lab,
    pods: AtomicUsize,
}

impl Fixture {
    /// Makes one. The plugin is put in place before containerd starts, by hand; agents then keep it
    /// there. Namespace `shop` is labeled for interception, `plain` and `kube-system` are not.
    pub fn new() -> Result<Self> {
        let lab = Lab::new()?;
        lab.add_outside(VIP)?;
        let api = ApiServer::start(lab.dir())?;
        for (name, labels) in [
            ("shop", json!({"sidetrack.dev/interception": "enabled"})),
            ("plain", json!({})),
            ("kube-system", json!({})),
        ] {
            api.apply(json!({
                "kind": "Namespace", "apiVersion": "v1",
                "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": labels},
            }))?;
        }
        let containerd = Containerd::start(&lab, |bin_dir, conf_dir| {
            let mut command = lab.places().command(&["install-cni"])?;
            let output = command.args(plugin_flags(bin_dir, conf_dir)).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "install-cni: {said}");
            Ok(())
        })?;
        // In a directory beside the pods': cgroup2 wants processes in leaves only.
        let cgroup = lab.places().cgroup.join("outside");
        std::fs::create_dir(&cgroup)?;
        let outside = PodNet {
            cgroup,
            ..lab.outside()
        }
        .actor()?;
        outside.listen(&ROOT, format!("{VIP}:80").parse()?)?;
        Ok(Self {
            agent: Mutex::new(None),
            api,
            outside,
            containerd,
            lab,
            pods: AtomicUsize::new(1),
        })
    }

    /// A number no other pod has.
    pub fn number(&self) -> usize {
        self.pods.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts an agent, as the DaemonSet does, unless one runs. It is shared by all tests, for nothing
    /// takes as long as the verifier.
    pub fn start_agent(&self) -> Result<()> {
        let mut agent = self.agent.lock();
        if agent.is_some() {
            return Ok(());
        }
        let flags = plugin_flags(&self.containerd.bin_dir, &self.containerd.conf_dir);
        let arguments: Vec<&str> = flags.iter().map(String::as_str).collect();
        let extra = Extra {
            api: Some(&self.api),
            arguments: &arguments,
            ..Extra::default()
        };
        *agent = Some(Agent::start_with(self.lab.places(), &extra)?);
        Ok(())
    }

    /// Ends the agent.
    pub fn end_agent(&self, signal: Signal) -> Result<()> {
        let mut agent = self.agent.lock();
        let mut agent = agent.take().context("an agent")?;
        agent.end(signal).map(drop)
    }

    /// Creates a pod and its sandbox.
    pub fn run(&self, object: &Value) -> Result<Pod<'_>> {
        self.api.apply(object.clone())?;
        Pod::run(self, object.clone())
    }

    /// Deletes a pod.
    pub fn delete(&self, object: &Value) -> Result<()> {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        self.api.delete("Pod", text("namespace"), text("name"))
    }

    /// Checks that nothing is anywhere of pods whose sandboxes are removed.
    pub fn nothing_remains(&self) -> Result<()> {
        self.containerd.nothing_remains(&self.lab)?;
        nothing_remains(self.lab.places())
            .with_context(|| format!("the agent's log:\n{}", self.lab.places().log()))
    }
}

fn plugin_flags(bin_dir: &Path, conf_dir: &Path) -> [String; 6] {
    [
        "--cni-bin-dir".to_owned(),
        bin_dir.display().to_string(),
        "--cni-conf-dir".to_owned(),
        conf_dir.display().to_string(),
        "--cni-timeout".to_owned(),
        WAIT_TIMEOUT.to_owned(),
    ]
}
