//! The pods that compete: alike in everything but how their connections get to the sidecar.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use lab::{
    agent::{Agent, Places},
    command::run_words,
    network::{Lab, Manifest, PodNet},
};

use crate::{
    crowd::Crowd,
    field::Field,
    worker::{Worker, median},
};

/// Where the app connects to.
pub const VIP: &str = "10.109.118.31";
const VIP_V4: Ipv4Addr = Ipv4Addr::new(10, 109, 118, 31);
/// The same over IPv6.
const VIP_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 0x31);
/// The application's user.
pub const APP: u32 = 1000;
/// The sidecar's.
pub const PROXY: u32 = 1337;

/// How connections of a pod get to its sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The sidecar is dialed itself.
    Directly,
    /// iptables' rules, loaded by this command.
    Iptables(&'static str),
    /// sidetrack.
    Sidetrack,
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
pub struct Pod {
    /// In the table.
    pub name: &'static str,
    /// The application.
    pub app: Worker,
    /// The sidecar, at its outbound port.
    pub outbound: Worker,
    inbound: Worker,
    /// The sidecar where it connects.
    proxy: Worker,
    /// The application's listener. The kernel keeps a bucket for each port that sockets are bound to: without a
    /// listener it would make one for each connection that comes in, and free it again.
    served: Worker,
    /// The sidecar that calls the app from the client's address.
    transparent: Option<Worker>,
    net: PodNet,
    how: How,
    /// Whether it has lists, which are of IPv4.
    has_lists: bool,
    /// Which of the labs it is in.
    lab: usize,
}

/// Lists of a policy.
#[derive(Clone, Copy)]
struct Lists {
    ranges: usize,
    ports: usize,
}

const ONE: Option<Lists> = Some(Lists {
    ranges: 1,
    ports: 1,
});
const MANY: Option<Lists> = Some(Lists {
    ranges: 10_000,
    ports: 1000,
});

/// A pod without interception, which the ratios refer to.
pub const NOTHING: &str = "nothing at all";
/// iptables as Debian has it, rules in the kernel's nf_tables.
pub const IPTABLES: &str = "iptables";
/// A pod with the default policy.
pub const SIDETRACK: &str = "sidetrack";

/// The same, accelerated.
pub const ACCELERATED: &str = "sidetrack, accelerated";

/// iptables in mode TPROXY.
pub const IPTABLES_TPROXY: &str = "iptables, TPROXY";
/// A pod in mode TPROXY.
pub const SIDETRACK_TPROXY: &str = "sidetrack, TPROXY";

/// The first port of a client with many destinations: beyond those of the mesh, of which a pod without istio-init excludes
/// 15020 from outbound capture.
const FIRST_PORT: u16 = 15_100;
/// The first address of such a client without interception. All are local in its pod, as those that sidetrack redirects to.
const FIRST_TARGET: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(127, 64, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 1, 0, 0, 0, 1)),
];
/// The sidecar's outbound port.
pub const SIDECAR: u16 = 15001;
/// Where the app listens.
const SERVED: u16 = 8080;
/// The address of a client, which no process has.
const CLIENT: &str = "198.51.100.7";

/// Name, lab, how, lists.
const PODS: [(&str, usize, How, Option<Lists>); 13] = [
    (NOTHING, 0, How::Directly, None),
    (IPTABLES, 0, How::Iptables("iptables-nft-restore"), None),
    (
        "iptables-legacy",
        0,
        How::Iptables("iptables-legacy-restore"),
        None,
    ),
    (
        "iptables, 1 range, 1 port",
        0,
        How::Iptables("iptables-nft-restore"),
        ONE,
    ),
    (
        "iptables, 10,000 ranges, 1,000 ports",
        0,
        How::Iptables("iptables-nft-restore"),
        MANY,
    ),
    (
        "sidetrack on the node, pod not enrolled",
        1,
        How::Directly,
        None,
    ),
    (SIDETRACK, 1, How::Sidetrack, None),
    ("sidetrack, 1 range, 1 port", 1, How::Sidetrack, ONE),
    (
        "sidetrack, 10,000 ranges, 1,000 ports",
        1,
        How::Sidetrack,
        MANY,
    ),
    ("sidetrack, more pods on the node", 2, How::Sidetrack, None),
    (ACCELERATED, 1, How::Sidetrack, None),
    (
        IPTABLES_TPROXY,
        0,
        How::Iptables("iptables-nft-restore"),
        None,
    ),
    (SIDETRACK_TPROXY, 1, How::Sidetrack, None),
];

fn is_tproxy(name: &str) -> bool {
    [IPTABLES_TPROXY, SIDETRACK_TPROXY].contains(&name)
}

/// Everything. Fields drop in order: processes before what they run in.
pub struct Environment {
    /// In the order of the table.
    pub pods: Vec<Pod>,
    outside: Vec<Worker>,
    /// Servers outside.
    services: Vec<Worker>,
    agent: Agent,
    /// A node with many more pods.
    pub crowd: Crowd,
    hooked: Lab,
    _bare: Lab,
}

impl Environment {
    /// Builds all pods, and a node with so many more.
    pub fn new(more: usize) -> Result<Self> {
        // Nothing of sidetrack is attached to the cgroups here.
        let mut bare = Lab::new()?;
        let mut hooked = Lab::new()?;
        let agent = Agent::start(hooked.places())?;
        let mut crowd = Crowd::start(more)?;
        let mut pods = Vec::new();
        for (number, (name, lab, how, lists)) in (2..).zip(PODS) {
            let of_lab = match lab {
                0 => &mut bare,
                1 => &mut hooked,
                _ => &mut crowd.lab,
            };
            let pod = Pod::new(of_lab, (name, number), how, lists.is_some(), lab)?;
            let text = manifest_of(name, &pod.net, lists);
            match how {
                How::Directly => {}
                How::Iptables(restore) => {
                    let file = of_lab.dir().join("pod.json");
                    fs::write(&file, text.to_string())?;
                    load_rules(&agent, &pod.net, &file.to_string_lossy(), restore)?;
                }
                How::Sidetrack => {
                    of_lab.write_manifest(&pod_name(name), &text)?;
                    let agent = if lab == 1 { &agent } else { &crowd.agent };
                    let name = format!("test/{}", pod_name(name));
                    agent.places.wait_enrolled(&name)?;
                }
            }
            pods.push(pod);
        }
        let mut outside = Vec::new();
        let mut services = Vec::new();
        for lab in [&bare, &hooked, &crowd.lab] {
            lab.add_outside(VIP)?;
            lab.add_outside(&VIP_V6.to_string())?;
            outside.push(Worker::start(&lab.outside(), 0, 0)?);
            services.push(Worker::start(&lab.outside(), 0, SERVED)?);
        }
        Ok(Self {
            pods,
            outside,
            services,
            agent,
            crowd,
            hooked,
            _bare: bare,
        })
    }

    /// The agent of the pods with sidetrack.
    pub fn places(&self) -> &Places {
        &self.agent.places
    }

    /// A directory for files.
    pub fn dir(&self) -> &Path {
        self.hooked.dir()
    }

    /// Median time from a changed manifest to the active policy, with 10,000 ranges and 1,000 ports.
    pub fn time_to_apply(&self) -> Result<Duration> {
        const TIMES: u16 = 9;
        /// A pod's policy may change once a second beyond a burst.
        const PAUSE: Duration = Duration::from_millis(1100);
        let many = |pod: &&Pod| pod.name == "sidetrack, 10,000 ranges, 1,000 ports";
        let Some(pod) = self.pods.iter().find(many) else {
            bail!("no pod with many ranges");
        };
        let name = pod_name(pod.name);
        let full = format!("test/{name}");
        let mut nanos = Vec::new();
        for time in 0..TIMES {
            thread::sleep(PAUSE);
            let before = self.agent.places.whole_pod(&full)?.policy_id;
            // Every time another first port, so that none of it is there already.
            let text = manifest_of(pod.name, &pod.net, MANY).to_string().replacen(
                "\"20000,",
                &format!("\"{},", 40_000 + time),
                1,
            );
            self.hooked.write_manifest(&name, &text)?;
            let took = self.agent.places.wait_pod(&full, |row| {
                row.is_some_and(|row| {
                    row["reason"].is_null() && row["policy_id"].as_u64() != before.map(u64::from)
                })
            })?;
            nanos.push(took.as_nanos() as u64);
        }
        Ok(Duration::from_nanos(median(&mut nanos)))
    }

    /// Those that take part in a field.
    ///
    /// # Errors
    /// If a worker does not answer.
    pub fn contestants(&self, field: Field) -> Result<Vec<Contestant<'_>>> {
        let takes_part = |pod: &&Pod| {
            if field.is_transparent() {
                pod.transparent.is_some()
            } else if pod.has_lists && (field.is_v6() || field.destinations() > 1) {
                // The lists are of IPv4, and of ports.
                false
            } else if field.is_v6() && is_tproxy(pod.name) {
                false
            } else {
                field.is_inbound() || !is_tproxy(pod.name)
            }
        };
        let one = |pod| self.contestant(pod, field);
        let all: Vec<_> = self.pods.iter().filter(takes_part).map(one).collect();
        for contestant in &all {
            contestant.server.listen_v6(field.is_v6())?;
        }
        Ok(all)
    }

    fn contestant<'a>(&'a self, pod: &'a Pod, field: Field) -> Contestant<'a> {
        let is_direct = pod.how == How::Directly;
        if let (true, Some(sidecar)) = (field.is_transparent(), &pod.transparent) {
            return Contestant {
                name: pod.name,
                client: sidecar,
                server: &pod.served,
                to: SocketAddr::new(pod.net.v4, SERVED),
            };
        }
        if field == Field::ProxyOut {
            return Contestant {
                name: pod.name,
                client: &pod.proxy,
                server: &self.services[pod.lab],
                to: SocketAddr::new(VIP_V4.into(), SERVED),
            };
        }
        let own = if field.is_v6() {
            pod.net.v6
        } else {
            pod.net.v4
        };
        if field.is_inbound() || field.is_own_pod() {
            return Contestant {
                name: pod.name,
                client: if field.is_inbound() {
                    &self.outside[pod.lab]
                } else {
                    &pod.proxy
                },
                server: &pod.inbound,
                to: SocketAddr::new(own, if is_direct { 15006 } else { SERVED }),
            };
        }
        let mut to = if field.is_v6() {
            pod.dialed_v6()
        } else {
            pod.dialed(0)
        };
        if field.destinations() > 1 && is_direct {
            to.set_ip(FIRST_TARGET[usize::from(field.is_v6())]);
        } else if field.destinations() > 1 {
            to.set_port(FIRST_PORT);
        }
        Contestant {
            name: pod.name,
            client: &pod.app,
            server: &pod.outbound,
            to,
        }
    }
}

impl Pod {
    fn new(
        lab: &mut Lab,
        (name, number): (&'static str, u8),
        how: How,
        has_lists: bool,
        of: usize,
    ) -> Result<Self> {
        let net = lab.pod(&format!("bench{number}"), number)?;
        if how == How::Directly {
            net.ip("route add local 100:0:0:1::/64 dev lo src ::1")?;
        }
        let sidecar = if is_tproxy(name) { 0 } else { PROXY };
        let transparent = match name {
            // The same connection without a mode: from the pod's own address.
            NOTHING => Some(Worker::start_as(&net, (0, PROXY), 0)?),
            _ if is_tproxy(name) => {
                let sidecar = Worker::start_as(&net, (0, PROXY), 0)?;
                sidecar.ask(&format!("from {CLIENT}"))?;
                Some(sidecar)
            }
            _ => None,
        };
        if matches!(how, How::Iptables(_)) && is_tproxy(name) {
            net.ip("rule add fwmark 1337 lookup 133")?;
            net.ip("route add local default dev lo table 133")?;
        }
        Ok(Self {
            name,
            app: Worker::start(&net, APP, 0)?,
            outbound: Worker::start(&net, PROXY, 15001)?,
            inbound: Worker::start_as(&net, (sidecar, PROXY), 15006)?,
            proxy: Worker::start(&net, PROXY, 0)?,
            served: Worker::start(&net, APP, SERVED)?,
            transparent,
            net,
            how,
            has_lists,
            lab: of,
        })
    }

    /// Its name in the agent's commands.
    pub fn full_name(&self) -> String {
        format!("test/{}", pod_name(self.name))
    }

    /// One of the destinations that lead to the sidecar.
    pub fn dialed(&self, number: u8) -> SocketAddr {
        if self.how == How::Directly {
            return SocketAddr::from(([127, 0, 0, 1 + number], 15001));
        }
        SocketAddr::from(([10, 109, 118, 31 + number], 80))
    }

    /// The destination over IPv6 that leads to the sidecar.
    fn dialed_v6(&self) -> SocketAddr {
        if self.how == How::Directly {
            return SocketAddr::from((Ipv6Addr::LOCALHOST, 15001));
        }
        SocketAddr::from((VIP_V6, 80))
    }

    /// One more application, or one more listener of the sidecar.
    pub fn another(&self, listens: bool) -> Result<Worker> {
        if listens {
            Worker::start(&self.net, PROXY, 15001)
        } else {
            Worker::start(&self.net, APP, 0)
        }
    }
}

/// A name Kubernetes would allow.
pub fn pod_name(name: &str) -> String {
    name.replace(", ", "-")
        .replace([',', ' '], "")
        .to_lowercase()
}

/// Lists that hold neither the service nor its port, but for the last included range.
fn manifest_of(name: &str, pod: &PodNet, lists: Option<Lists>) -> Manifest {
    let mut annotations = Vec::new();
    if name == ACCELERATED {
        annotations.push(("sidetrack.dev/accelerate", "true".to_owned()));
    }
    if is_tproxy(name) {
        annotations.push(("sidecar.istio.io/interceptionMode", "TPROXY".to_owned()));
    }
    if let Some(lists) = lists {
        let ranges: Vec<String> = (0..lists.ranges)
            .map(|number| format!("11.{}.{}.0/24", number / 256, number % 256))
            .collect();
        let ports: Vec<String> = (0..lists.ports)
            .map(|number| (20_000 + number).to_string())
            .collect();
        annotations.extend([
            (
                "traffic.sidecar.istio.io/includeOutboundIPRanges",
                "10.109.0.0/16".to_owned(),
            ),
            (
                "traffic.sidecar.istio.io/excludeOutboundIPRanges",
                ranges.join(","),
            ),
            (
                "traffic.sidecar.istio.io/excludeOutboundPorts",
                ports.join(","),
            ),
        ]);
    }
    Manifest::new(&pod_name(name), pod)
        .annotated(&annotations)
        .dual_stack(true)
}

/// A pod's manifest with the default policy; accelerated, if its name says so.
pub fn manifest(name: &str, pod: &PodNet) -> Manifest {
    manifest_of(name, pod, None)
}

/// Loads the rules of a manifest's policy, those of IPv6 with the command of the same kind.
pub fn load_rules(agent: &Agent, pod: &PodNet, manifest: &str, restore: &str) -> Result<()> {
    let restore_v6 = restore.replacen("iptables", "ip6tables", 1);
    for (family, restore) in [(&[][..], restore), (&["-6"], &restore_v6)] {
        let words = [
            "rules",
            "--ambient",
            "--manifest",
            manifest,
            "--format",
            "iptables",
        ];
        let rules = agent.places.output(&[&words, family].concat())?;
        if !rules.status.success() {
            bail!("{}", String::from_utf8_lossy(&rules.stderr));
        }
        let file = format!("{manifest}.rules");
        fs::write(&file, rules.stdout)?;
        run_words(&["ip", "netns", "exec", &pod.netns, restore, &file])?;
    }
    Ok(())
}
