//! A node with an agent that has the chart's memory limit, a healthy pod, and an API server.

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra, Places},
    apiserver::ApiServer,
    command::Process,
    injected::{injected, namespace},
    network::{Lab, PodNet},
    node::VIP,
    protocol::ROOT,
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    memory::Memory,
    report::{Report, Seen, mebibytes},
};

/// `resources.limits.memory` of the chart.
pub const LIMIT: u64 = 256 << 20;
/// An agent has read everything in less than this. The API server of the tests needs most of it.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The namespace of healthy pods; its pods are opted in.
pub const SHOP: &str = "shop";
/// The namespace of hostile pods; its pods are opted in.
pub const GREEDY: &str = "greedy";
/// A namespace that is not opted in.
pub const QUIET: &str = "quiet";

/// Address of the healthy pod.
pub const HEALTHY: &str = "10.77.0.2";

/// A pod that consists of a process that sleeps.
pub struct IdlePod {
    namespace: &'static str,
    name: String,
    process: Process,
}

/// Fields drop in order.
pub struct World {
    agent: Option<Agent>,
    /// Of the healthy pod.
    pub client: Actor,
    _sidecars: Vec<Actor>,
    _outside: Actor,
    pods: Vec<IdlePod>,
    objects: Vec<(&'static str, String)>,
    pub api: ApiServer,
    pub lab: Lab,
    memory: Option<Memory>,
    /// Where the agent answers.
    pub metrics: SocketAddr,
    /// How many pods there have been.
    count: usize,
}

impl World {
    pub fn new() -> Result<Self> {
        let mut lab = Lab::new()?;
        lab.add_outside(VIP)?;
        let outside = lab.outside().actor()?;
        outside.listen(&ROOT, SocketAddr::new("0.0.0.0".parse()?, 80))?;
        let api = ApiServer::start(lab.dir())?;
        for (name, label) in [
            (SHOP, Some("enabled")),
            (GREEDY, Some("enabled")),
            (QUIET, None),
        ] {
            api.apply(namespace(name, label))?;
        }
        let uid = lab.uid(1);
        let healthy = lab.pod("healthy", 2)?.under_kubelet(&lab, &uid)?;
        let sidecar = sidecar::start(&healthy, &[])?;
        api.apply(injected("healthy", &uid))?;
        let client = healthy.actor()?;
        let metrics = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut world = Self {
            agent: None,
            client,
            _sidecars: vec![sidecar],
            _outside: outside,
            pods: Vec::new(),
            objects: Vec::new(),
            api,
            lab,
            memory: Memory::new("agent", LIMIT)?,
            metrics,
            count: 1,
        };
        world.start_agent()?;
        world.places().wait_enrolled("shop/healthy")?;
        Ok(world)
    }

    /// Where the agent keeps things.
    pub fn places(&self) -> &Places {
        self.lab.places()
    }

    fn start_agent(&mut self) -> Result<()> {
        let address = self.metrics.to_string();
        let memory = self.memory.as_ref().map(Memory::procs);
        let extra = Extra {
            api: Some(&self.api),
            arguments: &["--metrics-addr", &address],
            memory: memory.as_deref(),
            ready_within: Some(READY_WITHIN),
            ..Extra::default()
        };
        self.agent = Some(Agent::start_with(self.lab.places(), &extra)?);
        Ok(())
    }

    /// Ends the agent and starts another, which reads everything that there is.
    pub fn restart_agent(&mut self) -> Result<()> {
        if let Some(mut agent) = self.agent.take() {
            agent.end(Signal::SIGTERM)?;
        }
        self.start_agent()
    }

    /// The agent, which must not have ended.
    pub fn agent(&mut self) -> Result<&mut Agent> {
        let agent = self.agent.as_mut().context("the agent did not start")?;
        ensure!(!agent.has_ended()?, "the agent has ended");
        Ok(agent)
    }

    /// The most memory since the last call: of the agent with its maps, or of the process alone where there is no
    /// memory controller.
    pub fn take_peak(&mut self) -> Result<u64> {
        if let Some(memory) = &self.memory {
            return memory.take_peak();
        }
        let agent = self.agent()?;
        let peak = agent.peak_memory()? << 10;
        agent.reset_peak_memory()?;
        Ok(peak)
    }

    /// A pod of a namespace, as the API server has it. Nothing of it runs.
    pub fn object(&mut self, namespace: &str, name: &str) -> Value {
        self.count += 1;
        let mut pod = injected(name, &self.lab.uid(self.count));
        pod["metadata"]["namespace"] = namespace.into();
        pod
    }

    /// Starts a pod with a process, and with an object that is changed before it is created.
    pub fn idle_pod(
        &mut self,
        namespace: &'static str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<()> {
        let mut pod = self.object(namespace, name);
        change(&mut pod);
        let netns = self.lab.empty_namespace()?;
        let uid = self.lab.uid(self.count);
        let process = self.lab.idle_process(&netns, &uid)?;
        self.pods.push(IdlePod {
            namespace,
            name: name.to_owned(),
            process,
        });
        self.api.apply(pod)
    }

    /// A pod with a network, whose app an actor is.
    pub fn active_pod(
        &mut self,
        namespace: &'static str,
        name: &str,
        number: u8,
        change: impl FnOnce(&mut Value),
    ) -> Result<(PodNet, Actor)> {
        let mut pod = self.object(namespace, name);
        change(&mut pod);
        let uid = self.lab.uid(self.count);
        let net = self.lab.pod(name, number)?.under_kubelet(&self.lab, &uid)?;
        let actor = net.actor()?;
        self.api.apply(pod)?;
        Ok((net, actor))
    }

    /// An object that has no process, or whose process ends by itself, is deleted with its namespace's pods.
    pub fn remember(&mut self, namespace: &'static str, name: &str) {
        self.objects.push((namespace, name.to_owned()));
    }

    /// Removes what remains of an attack in a namespace.
    pub fn clean(&mut self, namespace: &str) -> Result<()> {
        self.remove_pods(namespace)?;
        let objects = std::mem::take(&mut self.objects);
        for (of, name) in objects {
            if of == namespace {
                self.api.delete("Pod", of, &name)?;
            } else {
                self.objects.push((of, name));
            }
        }
        Ok(())
    }

    /// Ends the pods of a namespace, and deletes them.
    pub fn remove_pods(&mut self, namespace: &str) -> Result<()> {
        let (gone, stay) = std::mem::take(&mut self.pods)
            .into_iter()
            .partition(|pod: &IdlePod| pod.namespace == namespace);
        self.pods = stay;
        for pod in gone {
            drop(pod.process);
            self.api.delete("Pod", pod.namespace, &pod.name)?;
        }
        Ok(())
    }

    /// What the agent has at rest after the attacks.
    pub fn rest(&mut self, report: &mut Report) {
        let seen = self.look_at_rest();
        report.add("the agent at rest afterwards", seen);
    }

    fn look_at_rest(&mut self) -> Result<Seen> {
        // Freed memory is returned every ten seconds.
        thread::sleep(Duration::from_secs(12));
        self.take_peak()?;
        thread::sleep(Duration::from_secs(1));
        let all = self.take_peak()?;
        let (resident, _) = self.agent()?.memory()?;
        Ok(vec![
            format!("{} with maps", mebibytes(all)),
            format!("{} resident", mebibytes(resident << 10)),
        ])
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.pods.clear();
        // Before its cgroup is removed.
        self.agent = None;
    }
}
