//! One pod of the pair with its surroundings.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use lab::{
    actor::Actor,
    command::run_words,
    machine::{BEHIND, behind, set_forwarding},
    network::{BESIDE, GATEWAY, Lab, PodNet, bridge, set_sysctl},
    product::ReturnRoute,
    protocol::{APP, Identity, PROXY},
    sidecar::{listen, listen_transparently},
};

use crate::{
    datagrams,
    matrix::{Family, Origin},
    profiles::{More, Profile, Setting},
    target::Target,
};

/// Ports with a listener in the pod, as the proxy.
const PROXY_PORTS: [u16; 10] = [
    8600, 15001, 15006, 15008, 15020, 15021, 15053, 15090, 15101, 15106,
];
/// And as the app.
const APP_PORTS: [u16; 3] = [22, 53, 80];

/// Addresses of a neighbor that has routes for loopback addresses to the pod.
pub const NEIGHBOR: [&str; 2] = ["10.77.0.9", "fd77::9"];

/// The pod's interface toward a machine inside it, which is another network namespace.
pub const TAP: &str = "tap0";

/// One pod with its surroundings. Fields drop in order: processes before what they run in.
pub struct PairedPod {
    /// Dials from the pod.
    pub client: Actor,
    /// Dials to the pod, and through it to the machine.
    pub outside: Actor,
    /// Dials from the machine.
    machine: Actor,
    /// Dials from the neighbor, if the profile has one.
    neighbor: Option<Actor>,
    servers: Actor,
    /// Listeners in the pod by port, and whether they are on loopback alone.
    served: BTreeMap<u16, (bool, Vec<usize>)>,
    /// The return route of the oracle's last policy.
    pub(super) routed_back: Option<ReturnRoute>,
    profile: Option<&'static Profile>,
    pub(super) pod: PodNet,
    pub(super) lab: Lab,
}

impl PairedPod {
    pub(super) fn new(profile: Option<&'static Profile>) -> Result<Self> {
        let mut lab = Lab::new()?;
        lab.add_outside("10.109.118.31")?;
        lab.add_outside("fd99::31")?;
        let pod = lab.pod("app", 2)?;
        let outside = lab.outside();
        pod.furnish(&outside)?;
        // Without a default route there are destinations without any.
        for line in [
            "route del default",
            "route add 10.109.0.0/16 via 10.77.0.254",
            "-6 route del default",
            "-6 route add fd99::/64 via fd77::fe",
            "address add ::6/128 dev lo",
            "-6 address flush dev eth0 scope link",
            "address add fe80::2/64 dev eth0 nodad",
        ] {
            pod.ip(line)?;
        }
        outside.ip("address add fe80::1/64 dev br0 nodad")?;
        let machine = machine(&mut lab, &pod)?;
        let outside = outside.actor()?;
        for port in [22, 53, 80, 15001, 15008, 15021] {
            listen(&outside, &Identity::of(0), port)?;
        }
        let servers = pod.actor()?;
        let mut served = BTreeMap::new();
        for (owner, ports) in [(&PROXY, &PROXY_PORTS[..]), (&APP, &APP_PORTS[..])] {
            for port in ports {
                let ids = listen_for(&servers, owner, *port)?;
                served.insert(*port, (false, ids.into()));
            }
        }
        datagrams::answer(&servers, &outside)?;
        let wants_neighbor = profile.is_some_and(|it| it.more.contains(&More::Neighbor));
        let paired = Self {
            client: pod.actor()?,
            outside,
            machine,
            neighbor: wants_neighbor
                .then(|| neighbor(&mut lab, &pod))
                .transpose()?,
            servers,
            routed_back: None,
            profile,
            served,
            pod,
            lab,
        };
        for setting in profile.into_iter().flat_map(|it| it.settings) {
            paired.apply(setting)?;
        }
        Ok(paired)
    }

    /// Sets what a profile sets once; its rules come with each policy.
    fn apply(&self, setting: &Setting) -> Result<()> {
        let netns = &self.pod.netns;
        match setting {
            Setting::Sysctl(name, value) => set_sysctl(netns, &format!("net/{name}"), value),
            Setting::Conf(family, name, value) => {
                let line = format!(
                    "for file in /proc/sys/net/{family}/conf/*/{name}; do echo {value} > $file; done"
                );
                run_words(&["ip", "netns", "exec", netns, "sh", "-c", &line]).map(drop)
            }
            Setting::Ip(line) => self.pod.ip(line).map(drop),
            Setting::Rules(..) => Ok(()),
        }
    }

    /// Adds the rules that the profile has beside those of the mesh.
    pub(super) fn add_rules(&self) -> Result<()> {
        for setting in self.profile.into_iter().flat_map(|it| it.settings) {
            let Setting::Rules(table, texts) = setting else {
                continue;
            };
            for (restore, text) in ["iptables-restore", "ip6tables-restore"].iter().zip(texts) {
                let file = self.lab.dir().join("profile");
                fs::write(&file, format!("*{table}\n{text}COMMIT\n"))?;
                self.restore(&[restore, "--noflush"], &file)?;
            }
        }
        Ok(())
    }

    /// Who makes connections from there.
    pub fn actor(&self, origin: Origin) -> Result<&Actor> {
        match origin {
            Origin::Pod => Ok(&self.client),
            Origin::Outside => Ok(&self.outside),
            Origin::Machine => Ok(&self.machine),
            Origin::Neighbor => self.neighbor.as_ref().context("no neighbor"),
        }
    }

    /// One more process in the pod.
    pub fn another_client(&self) -> Result<Actor> {
        self.pod.actor()
    }

    fn has_ipv6(&self) -> bool {
        let disabled = |it: &Setting| matches!(it, Setting::Conf("ipv6", "disable_ipv6", _));
        !self
            .profile
            .is_some_and(|it| it.settings.iter().any(disabled))
    }

    /// Adds what this policy names: capture ports and addresses.
    pub(super) fn prepare(&mut self, target: &Target) -> Result<()> {
        set_forwarding(&self.pod, target.forwards)?;
        self.open_sidecar(target)?;
        for address in target.addresses() {
            // `replace`: another policy may have named it.
            let gateway = if address.is_ipv6() {
                "fd77::fe"
            } else {
                GATEWAY
            };
            if is_elsewhere(address) && (address.is_ipv4() || self.has_ipv6()) {
                let outside = self.lab.outside();
                outside.ip(&format!("address replace {address} dev lo"))?;
                self.pod
                    .ip(&format!("route replace {address} via {gateway}"))?;
            }
        }
        Ok(())
    }

    /// What istio-init does beside the rules.
    pub(super) fn route_back(&self, wanted: Option<ReturnRoute>) -> Result<()> {
        let families = if self.has_ipv6() {
            &["-4", "-6"][..]
        } else {
            &["-4"]
        };
        for family in families {
            if let Some(ReturnRoute { mark, table }) = self.routed_back {
                self.pod
                    .ip(&format!("{family} rule del fwmark {mark} lookup {table}"))?;
                self.pod
                    .ip(&format!("{family} route flush table {table}"))?;
            }
            if let Some(ReturnRoute { mark, table }) = wanted {
                self.pod
                    .ip(&format!("{family} rule add fwmark {mark} lookup {table}"))?;
                let route = format!("{family} route add local default dev lo table {table}");
                self.pod.ip(&route)?;
            }
        }
        Ok(())
    }

    /// Opens the capture ports that the sidecar does not listen on as its mesh's does.
    pub(super) fn open_sidecar(&mut self, target: &Target) -> Result<()> {
        let policy = &target.policy;
        let outbound = (policy.outbound_port, target.listens_on_loopback());
        for (port, on_loopback) in [outbound, (policy.inbound_port, false)] {
            if self.served.get(&port).is_some_and(|it| it.0 == on_loopback) {
                continue;
            }
            self.close(port)?;
            let ids = if on_loopback {
                self.listen_on_loopback(&target.proxy(), port)?
            } else {
                listen_transparently(&self.servers, &target.proxy(), port)?.into()
            };
            self.served.insert(port, (on_loopback, ids));
        }
        Ok(())
    }

    /// On the loopback addresses that the pod has.
    fn listen_on_loopback(&self, owner: &Identity, port: u16) -> Result<Vec<usize>> {
        let v6 = self.has_ipv6().then_some(Ipv6Addr::LOCALHOST.into());
        let all = [IpAddr::from(Ipv4Addr::LOCALHOST)].into_iter().chain(v6);
        all.map(|address| self.servers.listen(owner, SocketAddr::new(address, port)))
            .collect()
    }

    fn close(&mut self, port: u16) -> Result<()> {
        for id in self.served.remove(&port).into_iter().flat_map(|it| it.1) {
            self.servers.close(id, 0)?;
        }
        Ok(())
    }

    /// A policy without rules for a family or a table prints none, which replaces nothing.
    pub(super) fn flush_rules(&self) -> Result<()> {
        let netns = &self.pod.netns;
        for program in ["iptables", "ip6tables"] {
            for table in ["nat", "mangle", "raw"] {
                for flag in ["-F", "-X"] {
                    run_words(&["ip", "netns", "exec", netns, program, "-t", table, flag])?;
                }
            }
        }
        Ok(())
    }

    /// Where the agent looks for a pod whose processes are in the node's mount namespace.
    pub(super) fn write_resolv_conf(&self, target: &Target) -> Result<()> {
        let servers = target.servers.iter().flatten();
        let lines: String = servers.map(|it| format!("nameserver {it}\n")).collect();
        let dir = Path::new("/etc/netns").join(&self.pod.netns);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("resolv.conf.new"), lines)?;
        Ok(fs::rename(
            dir.join("resolv.conf.new"),
            dir.join("resolv.conf"),
        )?)
    }

    /// Closes the capture ports, as a sidecar does that ends.
    pub(super) fn close_sidecar(&mut self, target: &Target) -> Result<()> {
        self.close(target.policy.outbound_port)?;
        self.close(target.policy.inbound_port)
    }

    /// What `iptables -t nat -nvL -x` prints.
    pub fn counters(&self, family: Family) -> Result<String> {
        let program = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let netns = &self.pod.netns;
        let list = ["-t", "nat", "-nvL", "-x"];
        run_words(&[&["ip", "netns", "exec", netns, program][..], &list].concat())
    }

    /// A directory for files.
    pub fn dir(&self) -> &Path {
        self.lab.dir()
    }

    /// Runs iptables-restore or ip6tables-restore.
    pub(super) fn restore(&self, restore: &[&str], file: &Path) -> Result<()> {
        let file = file.to_string_lossy();
        let inside = ["ip", "netns", "exec", &self.pod.netns];
        run_words(&[&inside[..], restore, &[&file]].concat()).map(drop)
    }
}

/// Capture ports have transparent listeners, as they do in mode TPROXY; it changes nothing in others.
fn listen_for(servers: &Actor, owner: &Identity, port: u16) -> Result<[usize; 2]> {
    if *owner == PROXY {
        listen_transparently(servers, owner, port)
    } else {
        listen(servers, owner, port)
    }
}

/// Adds a machine behind the pod.
fn machine(lab: &mut Lab, pod: &PodNet) -> Result<Actor> {
    let inside = behind(lab, pod, TAP)?;
    let second = ["10.78.0.2", "fd78::2"];
    for (network, pod) in BEHIND.into_iter().zip(second) {
        // For a socket that is bound to the second interface.
        let route = format!("route add {network} via {pod} dev {BESIDE} metric 9");
        lab.outside().ip(&route)?;
    }
    let machine = inside.actor()?;
    for port in [22, 80, 15001, 15006, 15008, 15021] {
        listen(&machine, &Identity::of(0), port)?;
    }
    Ok(machine)
}

/// Adds a pod beside this one. It has no loopback addresses of its own, and takes the other for the gateway to all.
fn neighbor(lab: &mut Lab, pod: &PodNet) -> Result<Actor> {
    let outside = lab.outside();
    let netns = lab.empty_namespace()?;
    let [v4, v6] = NEIGHBOR;
    let addresses = [format!("{v4}/16"), format!("{v6}/64")];
    bridge::connect(
        ("neighbor", &netns),
        &outside.netns,
        &addresses.each_ref().map(String::as_str),
        &[],
    )?;
    set_sysctl(&netns, "net/ipv4/conf/all/route_localnet", "1")?;
    let neighbor = PodNet { netns, ..outside };
    neighbor.ip(&format!("route add 127.0.0.0/8 via {}", pod.v4))?;
    neighbor.ip(&format!("-6 route add 100:0:0:1::/64 via {}", pod.v6))?;
    neighbor.actor()
}

/// Whether an address can be given to the outside: it means nothing to the network yet.
fn is_elsewhere(address: IpAddr) -> bool {
    let used = [
        "10.77.0.0/16",
        "10.78.0.0/24",
        "10.79.0.0/24",
        "10.109.118.31/32",
        "10.200.0.0/14",
        "127.0.0.0/8",
        "224.0.0.0/3",
        "fd77::/64",
        "fd78::/64",
        "fd79::/64",
        "fd99::31/128",
        "fdb0::/14",
        "::/127",
        "::6/128",
        "ff00::/8",
        "fe80::/10",
    ];
    let used = used.map(|net| net.parse::<IpNet>().expect("a network"));
    !used.iter().any(|net| net.contains(&address)) && !address.is_unspecified()
}
