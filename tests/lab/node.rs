//! A cluster of one node, on which pods are started as a container runtime does.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};
use serde_json::Value;

use crate::{
    actor::Actor,
    agent::{Agent, Extra, Places},
    apiserver::ApiServer,
    injected::namespace,
    network::Lab,
    protocol::{APP, PROXY, ROOT},
    runtime::{Added, Runtime, Sandbox},
    wait::eventually,
};

/// A service outside the pods.
pub const VIP: &str = "10.109.118.31";

/// A cluster of one node with a network of its own.
#[derive(Debug)]
pub struct Node {
    /// Its agent, as long as there is one.
    pub agent: Option<Agent>,
    /// How many seconds ADD waits; counts for agents started from then on.
    pub patience: u32,
    /// The cluster's API server.
    pub api: ApiServer,
    /// What starts pods.
    pub runtime: Runtime,
    /// A server outside, on port 80 of [`VIP`].
    pub outside: Actor,
    /// The network.
    pub lab: Lab,
}

impl Node {
    /// A node with an agent that keeps the plugin in place, and a namespace `shop` that is opted in.
    pub fn new() -> Result<Self> {
        let lab = Lab::new()?;
        lab.add_outside(VIP)?;
        let outside = lab.outside().actor()?;
        outside.listen(&ROOT, any(80))?;
        let api = ApiServer::start(lab.dir())?;
        api.apply(namespace("shop", Some("enabled")))?;
        let runtime = Runtime::new(&lab)?;
        let mut node = Self {
            agent: None,
            patience: 2,
            api,
            runtime,
            outside,
            lab,
        };
        node.start_agent()?;
        Ok(node)
    }

    /// An agent that keeps the plugin in place.
    pub fn start_agent(&mut self) -> Result<()> {
        self.start_agent_with(&[])
    }

    /// The same, with more arguments.
    pub fn start_agent_with(&mut self, more: &[&str]) -> Result<()> {
        let (bin, conf) = (self.runtime.bin(), self.runtime.conf());
        let timeout = format!("--cni-timeout={}", self.patience);
        let own = ["--cni-bin-dir", &bin, "--cni-conf-dir", &conf, &timeout];
        self.agent = Some(Agent::start_with(
            self.lab.places(),
            &Extra {
                api: Some(&self.api),
                arguments: &[&own, more].concat(),
                ..Extra::default()
            },
        )?);
        self.wait_plugin(true)
    }

    /// Waits until the plugin is in the network configuration, or not.
    pub fn wait_plugin(&self, wanted: bool) -> Result<()> {
        eventually(Duration::from_secs(5), || {
            let list = self.runtime.read()?;
            let last = list["plugins"]
                .as_array()
                .and_then(|all| all.last())
                .cloned();
            let there = last.is_some_and(|last| {
                last["type"] == "sidetrack-cni" && last["timeoutSeconds"] == self.patience
            });
            ensure!(
                there == wanted,
                "the plugin is {there}: {list}\n{}",
                self.places().log()
            );
            Ok(())
        })
    }

    /// Where its agent keeps things.
    #[must_use]
    pub fn places(&self) -> &Places {
        self.lab.places()
    }

    /// Starts a pod of `shop` up to the point where its processes would be started.
    pub fn add(&mut self, name: &str, uid: &str) -> Result<Added> {
        self.runtime.add(&mut self.lab, name, uid)
    }

    /// The same; it must succeed.
    pub fn ready(&mut self, name: &str, uid: &str) -> Result<Sandbox> {
        match self.add(name, uid)? {
            Added::Ready(sandbox) => Ok(*sandbox),
            Added::Failed(error) => Err(anyhow!("{error}\n{}", self.places().log())),
        }
    }

    /// The same; it must fail. What the plugin said.
    pub fn failed(&mut self, name: &str, uid: &str) -> Result<Value> {
        match self.add(name, uid)? {
            Added::Ready(_) => Err(anyhow!("{name} started")),
            Added::Failed(error) => Ok(error),
        }
    }

    /// Makes the app connect out as soon as its sidecar listens; which port answered.
    pub fn first_connection(&self, sandbox: &Sandbox, uid: &str) -> Result<(Actor, u16)> {
        let actor = sandbox.pod(&self.lab, uid)?.actor()?;
        actor.listen(&PROXY, any(15001))?;
        let connected = actor.connect(&APP, vip())?;
        Ok((actor, connected.accepted_by))
    }

    /// Ends everything, the agent first.
    pub fn end(mut self) -> Result<()> {
        drop(self.agent.take());
        drop(self.outside);
        Ok(())
    }
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)
}

fn vip() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 109, 118, 31)), 80)
}
