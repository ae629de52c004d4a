//! The pods that compete: alike in everything but how their connections get to the sidecar.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Result, bail};
use lab::{
    agent::Agent,
    command::run_words,
    network::{Lab, PodNet},
};
use serde::Serialize;

use crate::worker::{Worker, median};

const VIP: &str = "10.109.118.31";
const APP: u32 = 1000;
const PROXY: u32 = 1337;

/// What is measured.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Field {
    /// connect(2) of the app, to the sidecar in its pod.
    Connect,
    /// 64 bytes from the app to its sidecar and back, on an established connection.
    RoundTrip,
    /// connect(2) from outside, to the sidecar's inbound port.
    Arrive,
}

impl Field {
    /// All.
    pub const ALL: [Self; 3] = [Self::Connect, Self::RoundTrip, Self::Arrive];

    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Self::Connect => "connect to the sidecar (app's connect call)",
            Self::RoundTrip => "round trip of 64 bytes, app to sidecar, connection established",
            Self::Arrive => "connect from outside to the sidecar's inbound port",
        }
    }
}

/// One of those that are measured in turns.
pub struct Contestant<'a> {
    /// In the table.
    pub name: &'static str,
    /// Who connects.
    pub client: &'a Worker,
    /// Who listens.
    pub server: &'a Worker,
    /// Where to.
    pub to: SocketAddr,
}

/// A pod with its app and sidecar.
struct Pod {
    name: &'static str,
    app: Worker,
    outbound: Worker,
    inbound: Worker,
    net: PodNet,
    /// Whether anything redirects; otherwise the sidecar is dialed itself.
    redirects: bool,
}

/// Lists of a policy.
#[derive(Clone, Copy)]
struct Lists {
    ranges: usize,
    ports: usize,
}

const ONE: Lists = Lists {
    ranges: 1,
    ports: 1,
};
const MANY: Lists = Lists {
    ranges: 5000,
    ports: 1000,
};

/// Everything. Fields drop in order: processes before what they run in.
pub struct Environment {
    pods: Vec<Pod>,
    outside: [Worker; 2],
    agent: Agent,
    hooked: Lab,
    _bare: Lab,
}

impl Environment {
    /// Builds all pods.
    pub fn new() -> Result<Self> {
        // Nothing of sidetrack is attached to the cgroups here.
        let mut bare = Lab::new()?;
        let mut hooked = Lab::new()?;
        for lab in [&bare, &hooked] {
            lab.add_outside(VIP)?;
        }
        let agent = Agent::start(hooked.places())?;
        let mut pods = Vec::new();
        pods.push(Pod::new(&mut bare, "nothing at all", 2, false)?);
        for (name, number, lists) in [
            ("iptables", 3, None),
            ("iptables, 1 range, 1 port", 4, Some(ONE)),
            ("iptables, 5,000 ranges, 1,000 ports", 5, Some(MANY)),
        ] {
            let pod = Pod::new(&mut bare, name, number, true)?;
            let file = bare.dir().join("pod.json");
            fs::write(&file, manifest(name, &pod.net, lists)?)?;
            restore(&agent, &pod.net, &file.to_string_lossy())?;
            pods.push(pod);
        }
        pods.push(Pod::new(
            &mut hooked,
            "sidetrack on the node, pod not enrolled",
            2,
            false,
        )?);
        for (name, number, lists) in [
            ("sidetrack", 3, None),
            ("sidetrack, 1 range, 1 port", 4, Some(ONE)),
            ("sidetrack, 5,000 ranges, 1,000 ports", 5, Some(MANY)),
        ] {
            let pod = Pod::new(&mut hooked, name, number, true)?;
            hooked.write_manifest(&pod_name(name), &manifest(name, &pod.net, lists)?)?;
            agent
                .places
                .wait_enrolled(&format!("test/{}", pod_name(name)))?;
            pods.push(pod);
        }
        Ok(Self {
            outside: [
                Worker::start(&bare.outside(), 0, 0)?,
                Worker::start(&hooked.outside(), 0, 0)?,
            ],
            pods,
            agent,
            hooked,
            _bare: bare,
        })
    }

    /// Median time from a changed manifest to the active policy, with 5,000 ranges and 1,000
    /// ports.
    pub fn time_to_apply(&self) -> Result<Duration> {
        const TIMES: u16 = 9;
        let Some(pod) = self.pods.last() else {
            bail!("no pods");
        };
        let name = pod_name(pod.name);
        let full = format!("test/{name}");
        let mut nanos = Vec::new();
        for time in 0..TIMES {
            // Every time another first port, so that none of it is there already.
            let text = manifest(pod.name, &pod.net, Some(MANY))?.replacen(
                "\"20000,",
                &format!("\"{},", 40_000 + time),
                1,
            );
            self.hooked.write_manifest(&name, &text)?;
            let took = self.agent.places.wait_pod(&full, |row| {
                row.is_some_and(|row| row["policy"]["excluded_outbound_ports"][0] == 40_000 + time)
            })?;
            nanos.push(took.as_nanos() as u64);
        }
        Ok(Duration::from_nanos(median(&mut nanos)))
    }

    /// Those that take part in a field.
    pub fn contestants(&self, field: Field) -> Vec<Contestant<'_>> {
        self.pods
            .iter()
            .zip(0..)
            .map(|(pod, number)| match field {
                Field::Connect | Field::RoundTrip => Contestant {
                    name: pod.name,
                    client: &pod.app,
                    server: &pod.outbound,
                    to: if pod.redirects {
                        at(VIP, 80)
                    } else {
                        at("127.0.0.1", 15001)
                    },
                },
                Field::Arrive => Contestant {
                    name: pod.name,
                    client: &self.outside[usize::from(number >= self.pods.len() / 2)],
                    server: &pod.inbound,
                    to: SocketAddr::new(pod.net.v4, if pod.redirects { 80 } else { 15006 }),
                },
            })
            .collect()
    }
}

impl Pod {
    fn new(lab: &mut Lab, name: &'static str, number: u8, redirects: bool) -> Result<Self> {
        let net = lab.pod(&format!("bench{number}"), number)?;
        Ok(Self {
            name,
            app: Worker::start(&net, APP, 0)?,
            outbound: Worker::start(&net, PROXY, 15001)?,
            inbound: Worker::start(&net, PROXY, 15006)?,
            net,
            redirects,
        })
    }
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port)
}

/// A name Kubernetes would allow.
fn pod_name(name: &str) -> String {
    name.replace(", ", "-").replace([',', ' '], "")
}

/// Lists that hold neither the service nor its port, but for the last included range.
fn manifest(name: &str, pod: &PodNet, lists: Option<Lists>) -> Result<String> {
    let mut annotations = serde_json::json!({"sidetrack.dev/netns": pod.path()});
    if let Some(lists) = lists {
        let ranges: Vec<String> = (0..lists.ranges)
            .map(|number| format!("11.{}.{}.0/24", number / 256, number % 256))
            .collect();
        let ports: Vec<String> = (0..lists.ports)
            .map(|number| (20_000 + number).to_string())
            .collect();
        for (annotation, value) in [
            ("includeOutboundIPRanges", "10.109.0.0/16".to_owned()),
            ("excludeOutboundIPRanges", ranges.join(",")),
            ("excludeOutboundPorts", ports.join(",")),
        ] {
            annotations[format!("traffic.sidecar.istio.io/{annotation}")] = value.into();
        }
    }
    Ok(serde_json::to_string(&serde_json::json!({
        "kind": "Pod",
        "metadata": {"name": pod_name(name), "namespace": "test", "uid": pod.uid, "annotations": annotations},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}]},
    }))?)
}

/// Loads the rules of a manifest's policy.
fn restore(agent: &Agent, pod: &PodNet, manifest: &str) -> Result<()> {
    let rules = agent
        .places
        .output(&["rules", "--manifest", manifest, "--format", "iptables"])?;
    if !rules.status.success() {
        bail!("{}", String::from_utf8_lossy(&rules.stderr));
    }
    let file = format!("{manifest}.rules");
    fs::write(&file, rules.stdout)?;
    run_words(&["ip", "netns", "exec", &pod.netns, "iptables-restore", &file]).map(drop)
}
