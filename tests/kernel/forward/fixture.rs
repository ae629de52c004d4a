//! A pod that forwards for a machine inside it: another network namespace behind an interface of the pod.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, ensure};
use lab::{
    actor::Actor,
    command::run,
    machine::{self, behind},
    network::PodNet,
    protocol::{Connected, Dial, Identity, ROOT},
    sidecar::listen,
    wait::eventually,
};

use crate::fixture::{PodFixture, ip};

pub use lab::machine::MACHINE;

/// The outside's service that the fixture of one pod has for IPv4, and one for IPv6.
pub const SERVICE: [&str; 2] = [lab::node::VIP, "fd99::31"];

/// Fields drop in order: processes before what they run in.
pub struct Forwarding {
    /// In the machine: dials, and serves 80 and 15090.
    pub machine: Actor,
    pub fixture: PodFixture,
    /// The machine's namespace.
    pub inside: PodNet,
}

impl Forwarding {
    /// The pod is not enrolled, and does not forward yet. The machine is behind the pod's interface tap0.
    pub fn new() -> Result<Self> {
        let mut fixture = PodFixture::new()?;
        fixture.lab.add_outside(SERVICE[1])?;
        listen(&fixture.outside, &Identity::of(0), 81)?;
        fixture
            .outside
            .listen(&ROOT, SocketAddr::new(ip("::"), 80))?;
        let inside = behind(&mut fixture.lab, &fixture.pod, "tap0")?;
        let machine = inside.actor()?;
        for port in [80, 15090] {
            listen(&machine, &Identity::of(0), port)?;
        }
        Ok(Self {
            machine,
            fixture,
            inside,
        })
    }

    /// Gives the pod the interface toward the machine.
    pub fn plug_in(&self, name: &str) -> Result<()> {
        machine::plug_in(&self.inside, &self.fixture.pod, name)
    }

    /// Has the pod forward, or not.
    pub fn set_forwarding(&self, on: bool) -> Result<()> {
        machine::set_forwarding(&self.fixture.pod, on)
    }

    /// Has the machine and the outside leave the checksums of what they send to their interfaces, or not.
    pub fn set_checksum_offload(&self, value: &str) -> Result<()> {
        for (netns, interface) in [
            (&self.inside.netns, "eth0"),
            (&self.fixture.lab.outside().netns, "br0"),
        ] {
            run(&format!(
                "ip netns exec {netns} ethtool -K {interface} tx-checksumming {value}"
            ))?;
        }
        Ok(())
    }

    /// Indexes of the interfaces that have the program, by a link or by a filter.
    pub fn programs(&self) -> Result<Vec<u32>> {
        let mut found = self.filters()?;
        found.extend(self.pins()?.into_keys());
        found.sort_unstable();
        Ok(found)
    }

    /// The pins of the program's links, by the index of the interface.
    pub fn pins(&self) -> Result<BTreeMap<u32, PathBuf>> {
        self.fixture.lab.places().ingress_pins("forward-")
    }

    /// Indexes of the interfaces that have the program by a filter.
    pub fn filters(&self) -> Result<Vec<u32>> {
        let netns = &self.fixture.pod.netns;
        let shown = run(&format!("ip netns exec {netns} bpftool -j net show"))?;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        let rows = shown[0]["tc"].as_array().cloned().unwrap_or_default();
        let ours = rows.iter().filter(|row| {
            let name = row["name"].as_str().unwrap_or_default();
            row["kind"] == "clsact/ingress" && name.starts_with("st_forward")
        });
        Ok(ours
            .filter_map(|row| row["ifindex"].as_u64()?.try_into().ok())
            .collect())
    }

    /// The queueing disciplines of the pod's interfaces, where filters are attached.
    pub fn qdiscs(&self) -> Result<String> {
        run(&format!("tc -n {} qdisc show", self.fixture.pod.netns))
    }

    /// Waits until so many interfaces have the program.
    pub fn wait_programs(&self, count: usize) -> Result<()> {
        eventually(Duration::from_secs(5), || {
            let programs = self.programs()?;
            ensure!(
                programs.len() == count,
                "{programs:?}, not {count}: {}",
                self.fixture.agent.places.log()
            );
            Ok(())
        })
    }

    /// The machine's connection to a service outside.
    pub fn leave(&self, to: IpAddr, port: u16) -> Result<Result<Connected, i32>> {
        // A listener that is not transparent yet answers the second or third SYN.
        self.machine
            .dial(Dial::new(&ROOT, SocketAddr::new(to, port)))
    }

    /// A connection from outside to the machine.
    pub fn enter(&self, to: IpAddr, port: u16) -> Result<Result<Connected, i32>> {
        let dial = Dial::new(&ROOT, SocketAddr::new(to, port));
        self.fixture.outside.dial(dial)
    }

    /// Routes and rules of the pod.
    pub fn routing(&self) -> Result<String> {
        let netns = &self.fixture.pod.netns;
        let mut all = String::new();
        for what in [
            "rule",
            "-6 rule",
            "route show table all",
            "-6 route show table all",
        ] {
            all += &run(&format!("ip -n {netns} {what}"))?;
        }
        Ok(all)
    }
}
