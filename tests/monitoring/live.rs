//! An agent with two pods, one of them without a sidecar, and the Prometheus that scrapes it.

use std::{fs, net::TcpListener};

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra},
    network::{Lab, PodNet, manifest},
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
};

use crate::{page::Page, prometheus::Prometheus};

/// Series of one pod only, so that the other one is omitted.
const ARGUMENTS: [&str; 2] = ["--metrics-per-pod", "1"];

/// What is shared by the tests.
pub struct Live {
    pub prometheus: Prometheus,
    /// The agent, until a test ends it.
    pub agent: Option<Agent>,
    address: String,
    app: Actor,
    outside: Actor,
    /// The sidecar of the pod that has none at first.
    sidecar: Option<Actor>,
    _other_sidecar: Actor,
    pods: [PodNet; 2],
    lab: Lab,
    other_is_listed: bool,
}

impl Live {
    pub fn start() -> Result<Self> {
        let mut lab = Lab::new()?;
        lab.add_outside(VIP)?;
        let pods = [lab.pod("app", 2)?, lab.pod("other", 3)?];
        for (name, pod) in ["app", "other"].into_iter().zip(&pods) {
            lab.write_manifest(name, &manifest(name, pod, &[]))?;
        }
        let address = free_address()?;
        let arguments = [&["--metrics-addr", &address], &ARGUMENTS[..]].concat();
        let agent = Agent::start_with(lab.places(), &Extra::arguments(&arguments))?;
        for name in ["test/app", "test/other"] {
            agent.places.wait_enrolled(name)?;
        }
        let live = Self {
            prometheus: Prometheus::start(lab.dir(), &address)?,
            agent: Some(agent),
            address,
            app: pods[0].actor()?,
            outside: lab.outside().actor()?,
            sidecar: None,
            _other_sidecar: sidecar::start(&pods[1], &[])?,
            pods,
            lab,
            other_is_listed: true,
        };
        live.refused()?;
        Ok(live)
    }

    /// Makes connections that are refused: to and from the pod without a sidecar.
    pub fn refused(&self) -> Result<()> {
        for answer in self.connect()? {
            ensure!(answer == Err(libc::ECONNREFUSED), "{answer:?}");
        }
        Ok(())
    }

    /// Connects to and from the pod; each answer is the port that has accepted.
    pub fn connect(&self) -> Result<[Result<u16, i32>; 2]> {
        let out = Dial::new(&APP, format!("{VIP}:80").parse()?);
        let into = Dial::new(&ROOT, "10.77.0.2:80".parse()?);
        let answers = [self.app.dial(out)?, self.outside.dial(into)?];
        Ok(answers.map(|answer| answer.map(|connected| connected.accepted_by)))
    }

    /// Starts or ends the pod's sidecar.
    pub fn set_sidecar(&mut self, wanted: bool) -> Result<()> {
        if wanted != self.sidecar.is_some() {
            self.sidecar = match wanted {
                true => Some(sidecar::start(&self.pods[0], &[])?),
                false => None,
            };
        }
        Ok(())
    }

    /// Lists the pod with a sidecar, or lists it no more.
    pub fn set_other(&mut self, wanted: bool) -> Result<()> {
        if wanted != self.other_is_listed {
            self.other_is_listed = wanted;
            if wanted {
                let text = manifest("other", &self.pods[1], &[]);
                self.lab.write_manifest("other", &text)?;
            } else {
                self.lab.remove_manifest("other")?;
            }
        }
        Ok(())
    }

    /// Removes a pin, as a program does that takes bpffs for its own. The agent repairs it.
    pub fn unpin(&self) -> Result<()> {
        let pin = self.lab.places().pins().join("links/connect4");
        fs::remove_file(&pin).with_context(|| format!("remove {}", pin.display()))
    }

    /// The metrics page, in the format for clients that ask for none.
    pub fn page(&self) -> Result<Page> {
        Page::get(&self.address)
    }
}

/// An address on loopback that nothing listens on.
pub fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
