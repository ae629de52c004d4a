//! Pods in ambient mode, with a stand-in for ztunnel: what it takes to get to its sockets.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::Result;
use lab::{
    agent::{Agent, Extra},
    network::{Lab, Manifest},
};
use serde_json::json;

use crate::{
    field::Field,
    pods::{APP, Contestant, NOTHING, SIDECAR, VIP, load_rules},
    worker::Worker,
};

/// istio-cni's rules.
const RULES: &str = "iptables, ambient";
const SIDETRACK: &str = "sidetrack, ambient";
/// Where ztunnel takes what comes in plaintext.
const INBOUND: u16 = 15006;
/// Where the app would listen.
const SERVED: u16 = 8080;

/// The pods. Fields drop in order.
pub struct Ambient {
    pods: Vec<Pod>,
    outside: Vec<Worker>,
    _agent: Agent,
    _labs: [Lab; 2],
}

struct Pod {
    name: &'static str,
    app: Worker,
    outbound: Worker,
    inbound: Worker,
    address: IpAddr,
    lab: usize,
}

impl Ambient {
    /// Builds all of them.
    pub fn new() -> Result<Self> {
        // Nothing of sidetrack is attached to the cgroups of the first.
        let mut labs = [Lab::new()?, Lab::new()?];
        let agent = Agent::start_with(labs[1].places(), &Extra::arguments(&["--ambient"]))?;
        let mut pods = Vec::new();
        for (number, (name, lab)) in (2..).zip([(NOTHING, 0), (RULES, 0), (SIDETRACK, 1)]) {
            let of_lab = &mut labs[lab];
            let file = format!("ambient{number}");
            let net = of_lab.pod(&file, number)?;
            let manifest = Manifest::new(&file, &net)
                .labeled("istio.io/dataplane-mode", "ambient")
                .edited(|pod| pod["spec"]["containers"] = json!([{"name": "app"}]));
            match name {
                RULES => {
                    let path = of_lab.dir().join("pod.json");
                    fs::write(&path, manifest.to_string())?;
                    let path = path.to_string_lossy();
                    load_rules(&agent, &net, &path, "iptables-nft-restore")?;
                }
                SIDETRACK => of_lab.enroll_manifest(&file, &manifest)?,
                _ => {}
            }
            pods.push(Pod {
                name,
                app: Worker::start(&net, APP, 0)?,
                outbound: Worker::start(&net, 0, SIDECAR)?,
                inbound: Worker::start(&net, 0, INBOUND)?,
                address: net.v4,
                lab,
            });
        }
        let mut outside = Vec::new();
        for lab in &labs {
            lab.add_outside(VIP)?;
            outside.push(Worker::start(&lab.outside(), 0, 0)?);
        }
        Ok(Self {
            pods,
            outside,
            _agent: agent,
            _labs: labs,
        })
    }

    /// All of them.
    pub fn contestants(&self, field: Field) -> Vec<Contestant<'_>> {
        let one = |pod| self.contestant(pod, field);
        self.pods.iter().map(one).collect()
    }

    fn contestant<'a>(&'a self, pod: &'a Pod, field: Field) -> Contestant<'a> {
        let is_direct = pod.name == NOTHING;
        let (client, server, address, port) = if field == Field::AmbientArrive {
            let port = if is_direct { INBOUND } else { SERVED };
            (&self.outside[pod.lab], &pod.inbound, pod.address, port)
        } else if is_direct {
            let own = IpAddr::V4(Ipv4Addr::LOCALHOST);
            (&pod.app, &pod.outbound, own, SIDECAR)
        } else {
            let service = VIP.parse().expect("an address");
            (&pod.app, &pod.outbound, service, SERVED)
        };
        Contestant {
            name: pod.name,
            client,
            server,
            to: SocketAddr::new(address, port),
        }
    }
}
