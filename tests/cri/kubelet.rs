//! What kubelet does with a pod: its sandbox, its init containers one after the other, its containers.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use lab::protocol::Response;
use serde_json::Value;
use tempfile::TempDir;

use crate::{containerd::wait, fixture::Fixture, messages as m};

/// A pod with a sandbox.
pub struct Pod<'a> {
    node: &'a Fixture,
    object: Value,
    config: m::SandboxConfig,
    id: String,
    /// How long RunPodSandbox took.
    pub took: Duration,
    logs: TempDir,
}

impl<'a> Pod<'a> {
    /// Makes a sandbox for a pod as the API server has it.
    pub fn run(node: &'a Fixture, object: Value) -> Result<Self> {
        let meta = &object["metadata"];
        let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
        // Runtimes append to logs that are there.
        let logs = tempfile::tempdir_in(node.lab.dir())?;
        let config = m::SandboxConfig {
            metadata: Some(m::SandboxMetadata {
                name: text("name"),
                uid: text("uid"),
                namespace: text("namespace"),
                attempt: 0,
            }),
            hostname: text("name"),
            log_directory: logs.path().display().to_string(),
            linux: Some(m::LinuxSandboxConfig {
                // Named as by kubelet's cgroupfs driver: a restarted agent finds the pod by it.
                cgroup_parent: format!("{}/pod{}", node.containerd.cgroup_parent, text("uid")),
            }),
        };
        let start = Instant::now();
        let id = node.containerd.client.run_sandbox(&config)?;
        let took = start.elapsed();
        Ok(Self {
            node,
            object,
            config,
            id,
            took,
            logs,
        })
    }

    /// Its namespace and name.
    pub fn name(&self) -> String {
        let text = |field: &str| self.object["metadata"][field].as_str().unwrap_or_default();
        format!("{}/{}", text("namespace"), text("name"))
    }

    /// Ends everything in it, and its network.
    pub fn stop(&self) -> Result<()> {
        self.node.containerd.client.stop_sandbox(&self.id)
    }

    /// Stops and removes it.
    pub fn remove(&self) -> Result<()> {
        self.stop()?;
        self.node.containerd.client.remove_sandbox(&self.id)
    }

    /// Runs the init containers; the exit code of the first that fails, or 0.
    pub fn run_init_containers(&self) -> Result<i32> {
        for container in self.containers("initContainers") {
            let id = self.start(container)?;
            let code = self.wait_exit(&id)?;
            if code != 0 {
                return Ok(code);
            }
        }
        Ok(0)
    }

    /// Starts the sidecar and, once it has said as much as it was asked, what follows it.
    pub fn run_containers(&self) -> Result<()> {
        for container in self.containers("containers") {
            self.start(container)?;
            let name = container["name"].as_str().unwrap_or_default();
            let asked = container["command"].as_array().map_or(0, Vec::len) - 2;
            wait(|| Ok(self.log(name).len() >= asked))
                .with_context(|| format!("container {name} said {:?}", self.log(name)))?;
        }
        Ok(())
    }

    /// What an actor's container has answered.
    pub fn answers(&self, name: &str) -> Result<Vec<Response>> {
        let log = self.log(name);
        let parse = |line: &String| {
            serde_json::from_str(line).with_context(|| format!("container {name} said {line:?}"))
        };
        log.iter().map(parse).collect()
    }

    /// Lines on a container's stdout and stderr.
    pub fn log(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.logs.path().join(name)).unwrap_or_default();
        // Time, stream, whether the line is whole, the line.
        let line = |line: &str| line.splitn(4, ' ').nth(3).map(str::to_owned);
        text.lines().filter_map(line).collect()
    }

    /// The pod's address.
    pub fn address(&self) -> Result<String> {
        self.node.containerd.client.address(&self.id)
    }

    fn containers(&self, field: &str) -> impl Iterator<Item = &Value> {
        self.object["spec"][field].as_array().into_iter().flatten()
    }

    fn start(&self, container: &Value) -> Result<String> {
        let name = container["name"].as_str().context("a name")?.to_owned();
        let image = container["image"].as_str().context("an image")?.to_owned();
        let security = &container["securityContext"];
        let number = |field: &str| security[field].as_i64().map(|value| m::Number { value });
        let command: Vec<String> = serde_json::from_value(container["command"].clone())?;
        let config = m::ContainerConfig {
            metadata: Some(m::ContainerMetadata {
                name: name.clone(),
                attempt: 0,
            }),
            image: Some(m::ImageSpec { image }),
            command,
            log_path: name,
            linux: Some(m::LinuxContainerConfig {
                security_context: Some(m::SecurityContext {
                    run_as_user: number("runAsUser"),
                    run_as_group: number("runAsGroup"),
                }),
            }),
        };
        let client = &self.node.containerd.client;
        client.run_container(&self.id, config, &self.config)
    }

    fn wait_exit(&self, id: &str) -> Result<i32> {
        let mut code = None;
        wait(|| {
            code = self.node.containerd.client.exit_code(id)?;
            Ok(code.is_some())
        })?;
        code.context("an exit code")
    }
}

/// The connection an actor reports.
pub fn dialed(answer: Option<&Response>) -> Result<&lab::protocol::Connected> {
    match answer {
        Some(Response::Dialed(result)) => {
            result.as_deref().map_err(|errno| anyhow!("errno {errno}"))
        }
        other => bail!("unexpected answer {other:?}"),
    }
}
