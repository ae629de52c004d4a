//! The cluster, what runs in it, and what is used to change it.

use std::{collections::BTreeMap, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    Options, certificates,
    helm::{Helm, Kustomization, NAMESPACE},
    kubectl::{self, Kubectl},
    load::Window,
    mesh::{self, Init},
    node,
};

/// The namespace whose pods have no rules of their own.
pub const SHOP: &str = "sidetrack-e2e-shop";
/// The namespace whose pods come with istio-init.
pub const LEGACY: &str = "sidetrack-e2e-legacy";
/// The namespace of the many.
pub const CROWD: &str = "sidetrack-e2e-crowd";
/// The key of the taint that agents remove from their nodes.
pub const TAINT: &str = "sidetrack.dev/not-ready";
/// Calls a second.
const RATE: u32 = 100;
/// How soon a change of a label or a pod is applied, with the questions about it.
pub const SOON: Duration = Duration::from_secs(20);
/// How long nodes may take to be clean by themselves.
pub const BY_ITSELF: Duration = Duration::from_secs(30);
/// Longest wait for pods to start.
pub const START: Duration = Duration::from_secs(180);

/// Everything a part needs.
pub struct World {
    pub options: Options,
    pub kube: Kubectl,
    pub helm: Helm,
}

impl World {
    /// Of a cluster that answers.
    pub fn new(options: Options) -> Result<Self> {
        let kube = Kubectl {
            program: options.kubectl.clone(),
            kubeconfig: std::path::absolute(&options.kubeconfig)?,
        };
        let nodes = kube
            .items(&["nodes"])
            .context("the cluster does not answer")?;
        println!(
            "cluster: {} node(s), {}",
            nodes.len(),
            nodes[0]["status"]["nodeInfo"]["kubeletVersion"]
                .as_str()
                .unwrap_or("?")
        );
        let helm = Helm {
            python: options.tools.join("bin/python"),
            kubeconfig: kube.kubeconfig.clone(),
            image: options.image.clone(),
        };
        Ok(Self {
            options,
            kube,
            helm,
        })
    }

    /// The pods that look at the nodes.
    pub fn start_looking(&self) -> Result<()> {
        self.kube.apply(&node::manifests(
            &self.options.mesh_image,
            self.options.shared_kernel,
        ))?;
        self.kube.rollout(node::NAMESPACE, "daemonset/node", START)
    }

    /// A namespace with a web server and a load on it.
    pub fn start_mesh(&self, namespace: &str, init: Init) -> Result<()> {
        let image = &self.options.mesh_image;
        self.kube.apply(&mesh::namespace(namespace)?)?;
        self.kube.apply(&mesh::web(namespace, init, image))?;
        let url = self.url(namespace)?;
        self.kube
            .apply(&[mesh::load(namespace, init, image, &url, RATE)])?;
        for workload in ["deployment/web", "deployment/load"] {
            self.kube.rollout(namespace, workload, START)?;
        }
        // The Service's rules take a moment to reach the nodes.
        self.kube.wait("the load works", START, |kube| {
            let window = Window::open();
            thread::sleep(Duration::from_secs(2));
            window.close(kube, namespace)?.none_failed().map(Some)
        })?;
        Ok(())
    }

    /// The address of a namespace's web server: there may be no DNS.
    pub fn url(&self, namespace: &str) -> Result<String> {
        let service = self.kube.get(&["-n", namespace, "service", "web"])?;
        let ip = service["spec"]["clusterIP"]
            .as_str()
            .context("an address")?;
        Ok(format!("http://{ip}/"))
    }

    /// The namespace for sidetrack, as `helm install --create-namespace` makes it.
    pub fn create_namespace(&self) -> Result<()> {
        self.kube.apply(&[kubectl::namespace(NAMESPACE)])
    }

    /// Installs by the chart and waits for the agents.
    pub fn install(&self, values: &Value) -> Result<()> {
        self.create_namespace()?;
        self.helm.install(values)?;
        self.wait_agents()
    }

    /// Waits until all agents are ready.
    pub fn wait_agents(&self) -> Result<()> {
        self.kube.rollout(NAMESPACE, "daemonset/sidetrack", START)
    }

    /// Restarts all agents, as after a change of their ConfigMap.
    pub fn restart_agents(&self) -> Result<()> {
        let words = ["-n", NAMESPACE, "rollout", "restart", "daemonset/sidetrack"];
        self.kube.run(&words)?;
        self.wait_agents()
    }

    /// `kubectl patch` of the agents' DaemonSet; `kind` is `json` or `merge`.
    pub fn patch_agents(&self, kind: &str, patch: &str) -> Result<()> {
        let kind = format!("--type={kind}");
        let of = ["-n", NAMESPACE, "patch", "daemonset", "sidetrack"];
        let words = [&of[..], &[&kind, "-p", patch]].concat();
        self.kube.run(&words).map(drop)
    }

    /// Deletes a pod of [`SHOP`] and does not wait for its end.
    pub fn delete_pod(&self, name: &str) -> Result<()> {
        let words = [
            "-n",
            SHOP,
            "delete",
            "pod",
            name,
            "--grace-period=1",
            "--wait=false",
        ];
        self.kube.run(&words).map(drop)
    }

    /// The agents' pods.
    pub fn agents(&self) -> Result<Vec<Value>> {
        let labels = "app.kubernetes.io/name=sidetrack";
        self.kube.items(&["-n", NAMESPACE, "pods", "-l", labels])
    }

    /// Runs sidetrack in each agent's container; the answers in JSON.
    pub fn ask_agents(&self, words: &[&str]) -> Result<Vec<Value>> {
        Ok(self.ask_by_node(words)?.into_values().collect())
    }

    /// Runs sidetrack in each agent's container; the answers in JSON, by the node's name.
    pub fn ask_by_node(&self, words: &[&str]) -> Result<BTreeMap<String, Value>> {
        let mut answers = BTreeMap::new();
        for agent in self.agents()? {
            let name = agent["metadata"]["name"].as_str().context("a name")?;
            let all = [
                &["-n", NAMESPACE, "exec", name, "--", "sidetrack"],
                words,
                &["-o", "json"],
            ];
            let output = self.kube.output(&all.concat())?;
            let answer = serde_json::from_slice(&output.stdout)
                .with_context(|| format!("{name}: {output:?}"))?;
            let node = agent["spec"]["nodeName"].as_str().context("a node")?;
            answers.insert(node.to_owned(), answer);
        }
        Ok(answers)
    }

    /// Enrolled pods of a namespace, by the agents.
    pub fn enrolled(&self, namespace: &str) -> Result<usize> {
        let answers = self.ask_agents(&["pods"])?;
        let all = answers.iter().filter_map(Value::as_array).flatten();
        Ok(all
            .filter(|pod| pod["namespace"] == namespace && pod["state"] == "enrolled")
            .count())
    }

    /// Waits until that many pods of a namespace are enrolled.
    pub fn wait_enrolled(&self, namespace: &str, count: usize, patience: Duration) -> Result<()> {
        let what = format!("{count} pods of {namespace} are enrolled");
        self.kube.wait(&what, patience, |_| {
            let enrolled = self.enrolled(namespace)?;
            ensure!(enrolled == count, "{enrolled} are");
            Ok(Some(()))
        })
    }

    /// Waits until the cluster answers and its nodes are ready.
    pub fn wait_nodes(&self) -> Result<()> {
        let words = [
            "wait",
            "--for=condition=Ready",
            "nodes",
            "--all",
            "--timeout=2s",
        ];
        self.kube
            .wait("the nodes are ready", START, |kube| {
                kube.run(&words).map(Some)
            })
            .map(drop)
    }

    /// Waits until the agents have installed the plugin with its entry and credentials.
    pub fn wait_plugin(&self) -> Result<()> {
        self.kube.wait("the plugin", START, |kube| {
            let traces = node::traces(kube)?.join("\n");
            ensure!(
                traces.contains("CNI entry in") && traces.contains("credentials"),
                "{traces}"
            );
            Ok(Some(()))
        })
    }

    /// Restarts a component of the node; `false` if there is no command for it.
    pub fn restart(&self, component: &str) -> Result<bool> {
        self.user_command(self.options.restart.as_deref(), component)
    }

    /// Stops a component of the node; `false` if there is no command for it.
    pub fn stop(&self, component: &str) -> Result<bool> {
        self.user_command(self.options.stop.as_deref(), component)
    }

    /// Reboots the node.
    pub fn reboot(&self) -> Result<bool> {
        self.user_command(self.options.reboot.as_deref(), "")
    }

    fn user_command(&self, command: Option<&str>, component: &str) -> Result<bool> {
        let Some(command) = command else {
            return Ok(false);
        };
        let command = command.replace("{}", component);
        let output = Command::new("sh").args(["-c", &command]).output()?;
        ensure!(
            output.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(true)
    }

    /// Removes everything that any run has made.
    pub fn remove_everything(&self) -> Result<()> {
        self.remove_install()?;
        self.start_looking()?;
        self.clean_if_needed()?;
        self.remove_taint();
        certificates::remove(&self.kube)?;
        for namespace in [SHOP, LEGACY, CROWD, "sidetrack-cleanup", node::NAMESPACE] {
            self.kube.delete_namespace(namespace)?;
        }
        Ok(())
    }

    /// Cleans the nodes if something remains of an agent that could not.
    pub fn clean_if_needed(&self) -> Result<()> {
        if node::traces(&self.kube)?.is_empty() {
            return Ok(());
        }
        self.clean_nodes()
    }

    /// Cleans the nodes, as docs/install.md says.
    pub fn clean_nodes(&self) -> Result<()> {
        let cleanup = Kustomization::new("cleanup", &[], &self.options.image)?;
        cleanup.apply(&self.kube)?;
        self.kube
            .rollout("sidetrack-cleanup", "daemonset/sidetrack-cleanup", START)
            .context("deploy/kubernetes/cleanup")?;
        cleanup.delete(&self.kube)?;
        self.kube.delete_namespace("sidetrack-cleanup")?;
        node::wait_clean(&self.kube, BY_ITSELF)
    }

    /// Removes the taint from all nodes. kubectl fails if none has it.
    pub fn remove_taint(&self) {
        let taint = format!("{TAINT}-");
        let _ = self.kube.run(&["taint", "nodes", "--all", &taint]);
    }

    /// Removes sidetrack, however it was installed.
    pub fn remove_install(&self) -> Result<()> {
        let kube = &self.kube;
        // By the order that leaves nothing; what is not there is no failure.
        let _ = self.helm.uninstall();
        for components in [&["cni", "taint"][..], &[]] {
            let _ = Kustomization::new("", components, &self.options.image)?.delete(kube);
        }
        let _ = kube.run(&[
            "delete",
            "--ignore-not-found",
            "clusterrole/sidetrack",
            "clusterrolebinding/sidetrack",
            "mutatingwebhookconfiguration/zz-sidetrack",
        ]);
        kube.delete_namespace(NAMESPACE)
    }
}
