//! A pod with a sidecar, and an agent that serves metrics.

use std::{net::TcpListener, thread, time::Duration};

use anyhow::Result;
use lab::{
    actor::Actor,
    agent::{Agent, Extra, Places},
    network::{Lab, PodNet},
    node::VIP,
    protocol::{APP, Dial},
    sidecar,
};

use super::table::{self, Clock};
use crate::fixture::at;

/// Longer than the agent takes from one look at sidecars to the next.
const LOOK_INTERVAL: Duration = Duration::from_secs(3);

pub struct Node {
    pub client: Actor,
    pub sidecar: Option<Actor>,
    pub agent: Agent,
    pub pod: PodNet,
    pub lab: Lab,
    metrics: String,
}

impl Node {
    pub fn new() -> Result<Self> {
        Self::with(|_| Ok(()))
    }

    /// With the agent's paths changed.
    pub fn with(change: impl FnOnce(&mut Places) -> Result<()>) -> Result<Self> {
        let mut lab = Lab::new()?;
        let mut places = lab.places().clone();
        change(&mut places)?;
        lab.add_outside(VIP)?;
        let pod = lab.pod("app", 2)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let metrics = format!("127.0.0.1:{port}");
        let node = Self {
            sidecar: Some(sidecar::start(&pod, &[80])?),
            agent: Agent::start_with(&places, &Extra::arguments(&["--metrics-addr", &metrics]))?,
            client: pod.actor()?,
            pod,
            lab,
            metrics,
        };
        node.lab.write_pod("app", &node.pod, &[])?;
        places.wait_enrolled("test/app")?;
        table::wait_up(&places)?;
        // It says what has changed between two looks at sidecars, and nothing shows when the first one was.
        thread::sleep(LOOK_INTERVAL);
        Ok(node)
    }

    /// The port that accepts the application's connection, or its errno.
    pub fn app_dials(&self) -> Result<Result<u16, i32>> {
        let dialed = self.client.dial(Dial::new(&APP, at(VIP, 80)))?;
        Ok(dialed.map(|connected| connected.accepted_by))
    }

    /// Checks every row below a heading.
    pub fn says(&self, clock: &Clock, heading: &str) -> Result<()> {
        self.says_of(clock, heading, "")
    }

    /// The same, where the rows have NAME for a name.
    pub fn says_of(&self, clock: &Clock, heading: &str, name: &str) -> Result<()> {
        let places = &self.agent.places;
        table::says(clock, heading, places, Some(&self.metrics), name)
    }
}
