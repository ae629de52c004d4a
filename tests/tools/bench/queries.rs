//! Pods that ask DNS servers, and one datagram that stands for the sidecar's answer.

use std::{fs, net::SocketAddr};

use anyhow::Result;
use lab::{agent::Agent, network::Lab};

use crate::{
    pods::{APP, Contestant, IPTABLES, NOTHING, PROXY, SIDETRACK, VIP, load_rules, manifest},
    worker::Worker,
};

/// An enrolled pod that asks the sidecar's port itself.
const NOT_CAPTURED: &str = "sidetrack, without DNS capture";
/// Where the sidecar answers.
const CAPTURE: u16 = 15053;

/// The pods. Fields drop in order.
pub struct Queries {
    pods: Vec<Pod>,
    _agent: Agent,
    _labs: [Lab; 2],
}

struct Pod {
    name: &'static str,
    app: Worker,
    sidecar: Worker,
}

impl Queries {
    /// Builds all of them.
    pub fn new() -> Result<Self> {
        // Nothing of sidetrack is attached to the cgroups of the first.
        let mut labs = [Lab::new()?, Lab::new()?];
        let agent = Agent::start(labs[1].places())?;
        let mut pods = Vec::new();
        let names = [
            (NOTHING, 0),
            (IPTABLES, 0),
            (SIDETRACK, 1),
            (NOT_CAPTURED, 1),
        ];
        for (number, (name, lab)) in (2..).zip(names) {
            let lab = &mut labs[lab];
            let net = lab.pod(&format!("dns{number}"), number)?;
            let file = format!("dns{number}");
            // Without istio-init: queries to any server.
            let captured = || manifest(&file, &net).with_variable("ISTIO_META_DNS_CAPTURE", "true");
            match name {
                IPTABLES => {
                    let path = lab.dir().join("pod.json");
                    fs::write(&path, captured().to_string())?;
                    load_rules(
                        &agent,
                        &net,
                        &path.to_string_lossy(),
                        "iptables-nft-restore",
                    )?;
                }
                SIDETRACK => lab.enroll_manifest(&file, &captured())?,
                NOT_CAPTURED => lab.enroll_manifest(&file, &manifest(&file, &net))?,
                _ => {}
            }
            let sidecar = Worker::start(&net, PROXY, 0)?;
            sidecar.ask(&format!("bind 127.0.0.1:{CAPTURE}"))?;
            pods.push(Pod {
                name,
                app: Worker::start(&net, APP, 0)?,
                sidecar,
            });
        }
        Ok(Self {
            pods,
            _agent: agent,
            _labs: labs,
        })
    }

    /// All of them.
    pub fn contestants(&self) -> Vec<Contestant<'_>> {
        self.pods.iter().map(Pod::contestant).collect()
    }
}

impl Pod {
    fn contestant(&self) -> Contestant<'_> {
        let to = if [NOTHING, NOT_CAPTURED].contains(&self.name) {
            SocketAddr::from(([127, 0, 0, 1], CAPTURE))
        } else {
            SocketAddr::new(VIP.parse().expect("an address"), 53)
        };
        Contestant {
            name: self.name,
            client: &self.app,
            server: &self.sidecar,
            to,
        }
    }
}
