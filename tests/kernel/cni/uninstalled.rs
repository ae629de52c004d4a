//! Sidetrack is uninstalled, and no agent could remove the plugin's entry.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Output, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra, NODE},
    apiserver::ApiServer,
    injected::{injected, namespace},
    network::Lab,
    node::Node,
    runtime::{Runtime, plugin},
    wait::eventually,
};
use serde_json::{Value, json};

/// Where the plugin's credentials are, in the directory of network configurations.
const KUBECONFIG: &str = "sidetrack-cni.kubeconfig";

/// A node whose agent is gone; its plugin has credentials.
struct Abandoned {
    runtime: Runtime,
    api: ApiServer,
    lab: Lab,
}

impl Abandoned {
    fn new() -> Result<Self> {
        let lab = Lab::new()?;
        let api = ApiServer::start(lab.dir())?;
        api.apply(namespace("shop", Some("enabled")))?;
        install(&api)?;
        let runtime = Runtime::new(&lab)?;
        let secret = lab.dir().join("secret");
        let (bin, conf) = (runtime.bin(), runtime.conf());
        let port = api.address().port().to_string();
        let secret_text = secret.display().to_string();
        let agent = Agent::start_with(
            lab.places(),
            &Extra {
                api: Some(&api),
                arguments: &[
                    "--daemonset=sidetrack-system/sidetrack",
                    "--cni-bin-dir",
                    &bin,
                    "--cni-conf-dir",
                    &conf,
                    "--cni-timeout=1",
                    "--cni-credentials",
                    &secret_text,
                ],
                variables: &[
                    ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
                    ("KUBERNETES_SERVICE_PORT", &port),
                ],
                ..Extra::default()
            },
        )?;
        let node = Self { runtime, api, lab };
        // The Secret has no token yet: the entry is there already, and people see what is missing.
        node.wait(|node| {
            let problem = node.lab.places().problems()?;
            Ok(node.has_entry()? && problem.contains("Secret with the plugin's credentials"))
        })?;
        node.api.write_secret(&secret)?;
        node.wait(|node| Ok(node.kubeconfig().exists()))?;
        let mode = fs::metadata(node.kubeconfig())?.permissions().mode();
        ensure!(mode & 0o777 == 0o600, "{mode:o}");
        // As after a crash.
        drop(agent);
        Ok(node)
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        std::path::Path::new(&self.runtime.conf()).join(KUBECONFIG)
    }

    fn has_entry(&self) -> Result<bool> {
        Ok(self.runtime.read()?["plugins"]
            .to_string()
            .contains("sidetrack-cni"))
    }

    fn wait(&self, done: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        eventually(Duration::from_secs(20), || {
            ensure!(done(self)?, "{}", self.lab.places().log());
            Ok(())
        })?;
        Ok(())
    }

    /// The ADD of a pod that is to be intercepted.
    fn prepare(&mut self, number: usize) -> Result<Add> {
        let uid = self.lab.uid(number);
        let name = format!("web-{number}");
        self.api.apply(injected(&name, &uid))?;
        let list = self.runtime.read()?;
        let plugins = list["plugins"].as_array().context("plugins")?;
        let mut config = plugins.last().context("ours")?.clone();
        ensure!(config["type"] == "sidetrack-cni", "{config}");
        config["cniVersion"] = list["cniVersion"].clone();
        config["name"] = list["name"].clone();
        config["prevResult"] = json!({"cniVersion": "1.0.0", "ips": []});
        Ok(Add {
            netns: self.lab.empty_namespace()?,
            arguments: format!(
                "K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID={uid};IgnoreUnknown=1"
            ),
            config: config.to_string(),
        })
    }

    fn stays_closed(&mut self, number: usize) -> Result<()> {
        let output = self.prepare(number)?.run()?;
        ensure!(!output.status.success(), "{output:?}");
        ensure!(self.has_entry()?, "{output:?}");
        Ok(())
    }

    /// The DaemonSet is deleted, and created again while the plugin looks: it waits one second for an agent,
    /// then looks for five.
    fn stays_closed_while_replaced(&mut self, number: usize) -> Result<()> {
        self.api
            .delete("DaemonSet", "sidetrack-system", "sidetrack")?;
        let add = self.prepare(number)?;
        let output = thread::scope(|scope| {
            let adding = scope.spawn(|| add.run());
            thread::sleep(Duration::from_secs(3));
            install(&self.api)?;
            adding.join().expect("no panic")
        })?;
        ensure!(!output.status.success(), "{output:?}");
        ensure!(self.has_entry()?, "{output:?}");
        Ok(())
    }

    fn opens(&mut self, number: usize, reasons: &[&str]) -> Result<()> {
        let output = self.prepare(number)?.run()?;
        ensure!(output.status.success(), "{output:?}");
        let result: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(result["ips"] == json!([]), "passed on: {result}");
        let said = String::from_utf8_lossy(&output.stderr);
        for part in reasons.iter().chain(&["starts without interception"]) {
            ensure!(said.contains(part), "{part}: {said}");
        }
        // They are the agent's, and a plugin that is mistaken could not put them back.
        ensure!(self.has_entry()? && self.kubeconfig().exists());
        Ok(())
    }
}

/// What a runtime gives the plugin.
struct Add {
    netns: String,
    arguments: String,
    config: String,
}

impl Add {
    fn run(&self) -> Result<Output> {
        let path = format!("/run/netns/{}", self.netns);
        plugin(
            &[
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", &self.netns),
                ("CNI_NETNS", &path),
                ("CNI_IFNAME", "eth0"),
                ("CNI_ARGS", &self.arguments),
            ],
            self.config.as_bytes(),
        )
    }
}

fn install(api: &ApiServer) -> Result<()> {
    for (kind, version) in [("DaemonSet", "apps/v1"), ("ConfigMap", "v1")] {
        api.apply(json!({
            "kind": kind, "apiVersion": version,
            "metadata": {"name": "sidetrack", "namespace": "sidetrack-system", "uid": kind},
        }))?;
    }
    Ok(())
}

kernel_test!(pods_start_where_the_daemonset_is_gone);
fn pods_start_where_the_daemonset_is_gone() -> Result<()> {
    let mut node = Abandoned::new()?;
    node.stays_closed(1)?;
    node.api.down();
    node.stays_closed(2)?;
    node.api.up();
    node.stays_closed_while_replaced(3)?;
    // During an outage of etcd, or after its keys were replaced, the API server answers 401.
    node.api.revoke(true);
    node.stays_closed(4)?;
    node.api.revoke(false);
    node.api
        .edit("DaemonSet", "sidetrack-system", "sidetrack", |object| {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        })?;
    let reasons = [
        "DaemonSet sidetrack-system/sidetrack is deleted",
        "sidetrack-cni cleanup",
    ];
    node.opens(5, &reasons)?;
    node.api
        .delete("DaemonSet", "sidetrack-system", "sidetrack")?;
    node.opens(6, &reasons)
}

/// Sets the annotation that opens the gate of nodes.
fn open_gate(api: &ApiServer, nodes: Option<&str>) -> Result<()> {
    api.edit("DaemonSet", "sidetrack-system", "sidetrack", |object| {
        object["metadata"]["annotations"] = match nodes {
            Some(nodes) => json!({"sidetrack.dev/open-gate": nodes}),
            None => json!({}),
        };
    })
}

kernel_test!(pods_start_where_the_gate_is_open);
/// An administrator opens it for a node on which no pod starts, and closes it again.
fn pods_start_where_the_gate_is_open() -> Result<()> {
    let mut node = Abandoned::new()?;
    open_gate(&node.api, Some("another-node"))?;
    node.stays_closed(1)?;
    open_gate(&node.api, Some(&format!("another-node, {NODE}")))?;
    node.opens(2, &["annotation sidetrack.dev/open-gate of DaemonSet"])?;
    open_gate(&node.api, None)?;
    node.stays_closed(3)?;
    open_gate(&node.api, Some("*"))?;
    node.opens(4, &["annotation sidetrack.dev/open-gate of DaemonSet"])?;
    // An agent that runs says so, until it is closed.
    let extra = Extra {
        api: Some(&node.api),
        arguments: &["--daemonset=sidetrack-system/sidetrack"],
        ..Extra::default()
    };
    let _agent = Agent::start_with(node.lab.places(), &extra)?;
    let says = |node: &Abandoned| -> Result<bool> {
        let problems = node.lab.places().problems()?;
        Ok(problems.contains("the gate of this node is open"))
    };
    node.wait(says)?;
    open_gate(&node.api, None)?;
    node.wait(|node| Ok(!says(node)?))
}

kernel_test!(cleanup_takes_the_entry_away);
fn cleanup_takes_the_entry_away() -> Result<()> {
    let mut node = Node::new()?;
    let (places, conf) = (node.places().clone(), node.runtime.conf());
    let words = [
        "cleanup",
        "--dry-run",
        "--cni-conf-dir",
        &conf,
        "-o",
        "json",
    ];
    let dry = places.output(&words)?;
    ensure!(dry.status.code() == Some(1), "an agent runs: {dry:?}");
    let dry: Value = serde_json::from_slice(&dry.stdout)?;
    let list = json!([node.runtime.list()]);
    ensure!(dry["plugin"] == list && dry["links"] != json!([]), "{dry}");
    ensure!(
        dry["would_fail"]
            .to_string()
            .contains("an agent is running"),
        "{dry}"
    );
    node.wait_plugin(true)?;
    drop(node.agent.take());
    // Another agent's.
    let mut other = node.places().clone();
    other.socket = node.lab.dir().join("other.sock");
    let planned = other.output(&words)?;
    ensure!(planned.status.code() == Some(1), "the entry stays");
    let planned: Value = serde_json::from_slice(&planned.stdout)?;
    ensure!(
        planned["plugin"] == json!([]) && planned["left"] == list,
        "{planned}"
    );
    let would_fail = planned["would_fail"].to_string();
    ensure!(would_fail.contains("on another socket"), "{planned}");
    let kubeconfig = std::path::Path::new(&conf).join(KUBECONFIG);
    fs::write(&kubeconfig, "")?;
    let removed = places.json(&["cleanup", "--cni-conf-dir", &conf, "-o", "json"])?;
    ensure!(removed["plugin"] == list, "{removed}");
    let other = removed["other"].as_array();
    ensure!(
        other.is_some_and(|it| it.contains(&json!(kubeconfig))),
        "{removed}"
    );
    ensure!(
        !node.runtime.read()?["plugins"]
            .to_string()
            .contains("sidetrack-cni")
    );
    let nothing = places.output(&["cleanup", "--dry-run", "--cni-conf-dir", &conf])?;
    let text = String::from_utf8_lossy(&nothing.stdout);
    ensure!(text.contains("nothing to remove"), "{text}");
    node.end()
}
