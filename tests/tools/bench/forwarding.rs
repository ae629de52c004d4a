//! Pods that forward packets of a machine behind them.

use std::{
    fs,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lab::{
    agent::Agent,
    machine::{behind, set_forwarding},
    network::Lab,
};

use crate::{
    field::Field,
    pods::{Contestant, IPTABLES, NOTHING, PROXY, SIDETRACK, VIP, load_rules, manifest},
    worker::Worker,
};

/// The sidecar's port for inbound connections.
const CAPTURE: u16 = 15006;
/// A port that no policy captures.
const EXCLUDED: u16 = 15090;
/// The pod's address toward the machine.
const GATEWAY: [u8; 4] = [10, 79, 0, 1];
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The pods. Fields drop in order.
pub struct Forwarding {
    pods: Vec<Pod>,
    _agent: Agent,
    _labs: Vec<Lab>,
}

struct Pod {
    name: &'static str,
    machine: Worker,
    sidecar: Worker,
    outside: Worker,
}

impl Forwarding {
    /// Builds all of them, each in a network of its own: their machines have the same addresses.
    pub fn new() -> Result<Self> {
        let mut labs = vec![Lab::new()?, Lab::new()?, Lab::new()?];
        let agent = Agent::start(labs[2].places())?;
        let mut pods = Vec::new();
        for (lab, name) in labs.iter_mut().zip([NOTHING, IPTABLES, SIDETRACK]) {
            lab.add_outside(VIP)?;
            let net = lab.pod("forwards", 2)?;
            set_forwarding(&net, true)?;
            let machine = behind(lab, &net, "tap0")?;
            let pod = Pod {
                name,
                machine: Worker::start(&machine, 0, 0)?,
                // Root listens transparently, as listeners must that answer for other hosts.
                sidecar: Worker::start_as(&net, (0, PROXY), CAPTURE)?,
                outside: Worker::start(&lab.outside(), 0, EXCLUDED)?,
            };
            let text = manifest(name, &net);
            if name == IPTABLES {
                let file = lab.dir().join("pod.json");
                fs::write(&file, text.to_string())?;
                load_rules(
                    &agent,
                    &net,
                    &file.to_string_lossy(),
                    "iptables-nft-restore",
                )?;
            } else if name == SIDETRACK {
                lab.write_manifest(name, &text)?;
                agent.places.wait_enrolled(&format!("test/{name}"))?;
            }
            pod.wait_captured()?;
            pods.push(pod);
        }
        Ok(Self {
            pods,
            _agent: agent,
            _labs: labs,
        })
    }

    /// Those that take part in a field.
    pub fn contestants(&self, field: Field) -> Vec<Contestant<'_>> {
        let one = |pod| Pod::contestant(pod, field);
        self.pods.iter().map(one).collect()
    }
}

impl Pod {
    fn contestant(&self, field: Field) -> Contestant<'_> {
        let (server, to) = if field == Field::PassingStream {
            (&self.outside, vip(EXCLUDED))
        } else {
            (&self.sidecar, self.captured())
        };
        Contestant {
            name: self.name,
            client: &self.machine,
            server,
            to,
        }
    }

    /// What leads to the sidecar; without interception that is the sidecar itself.
    fn captured(&self) -> SocketAddr {
        if self.name == NOTHING {
            return SocketAddr::from((GATEWAY, CAPTURE));
        }
        vip(80)
    }

    /// Only the sidecar serves what the machine dials.
    fn wait_captured(&self) -> Result<()> {
        let start = Instant::now();
        while self
            .machine
            .ask(&format!("hold {} 1", self.captured()))?
            .count
            == 0
        {
            ensure!(
                start.elapsed() < WAIT_TIMEOUT,
                "{}: not captured",
                self.name
            );
            thread::sleep(Duration::from_millis(20));
        }
        self.machine.ask("release")?;
        self.sidecar.ask("drain")?;
        Ok(())
    }
}

fn vip(port: u16) -> SocketAddr {
    let vip = VIP.parse().expect("an address");
    SocketAddr::new(vip, port)
}
