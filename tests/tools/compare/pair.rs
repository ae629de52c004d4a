//! Two pods alike in everything but who redirects.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    net::{IpAddr, TcpListener},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use lab::{
    actor::Actor,
    agent::{Agent, Extra, Places},
    command::{output, run_words},
    machine::{BEHIND, behind, set_forwarding},
    network::{BESIDE, GATEWAY, Lab, PodNet},
    product::ReturnRoute,
    protocol::{APP, Identity, PROXY},
    sidecar::{listen, listen_transparently},
};
use serde_json::Value;

use crate::{
    datagrams,
    matrix::Family,
    target::{Rules, Target},
};

/// Ports with a listener in the pod, as the proxy.
const PROXY_PORTS: [u16; 10] = [
    8600, 15001, 15006, 15008, 15020, 15021, 15053, 15090, 15101, 15106,
];
/// And as the app.
const APP_PORTS: [u16; 3] = [22, 53, 80];

/// The pod's interface toward a machine inside it, which is another network namespace.
pub const TAP: &str = "tap0";

/// One pod with its surroundings. Fields drop in order: processes before what they run in.
pub struct PairedPod {
    /// Dials from the pod.
    pub client: Actor,
    /// Dials to the pod, and through it to the machine.
    pub outside: Actor,
    /// Dials from the machine.
    pub machine: Actor,
    servers: Actor,
    /// Listeners in the pod by port.
    served: BTreeMap<u16, [usize; 2]>,
    /// The return route of the oracle's last policy.
    routed_back: Option<ReturnRoute>,
    pod: PodNet,
    lab: Lab,
}

impl PairedPod {
    fn new() -> Result<Self> {
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
        ] {
            pod.ip(line)?;
        }
        let machine = machine(&mut lab, &pod)?;
        let outside = outside.actor()?;
        for port in [22, 53, 80, 15001, 15008, 15021] {
            listen(&outside, &Identity::of(0), port)?;
        }
        let servers = pod.actor()?;
        let mut served = BTreeMap::new();
        for (owner, ports) in [(&PROXY, &PROXY_PORTS[..]), (&APP, &APP_PORTS[..])] {
            for port in ports {
                served.insert(*port, listen_for(&servers, owner, *port)?);
            }
        }
        datagrams::answer(&servers, &outside)?;
        Ok(Self {
            client: pod.actor()?,
            outside,
            machine,
            servers,
            routed_back: None,
            served,
            pod,
            lab,
        })
    }

    /// Adds what this policy names: capture ports and addresses.
    fn prepare(&mut self, target: &Target) -> Result<()> {
        set_forwarding(&self.pod, target.forwards)?;
        self.open_sidecar(target)?;
        for address in target.addresses() {
            // `replace`: another policy may have named it.
            let gateway = if address.is_ipv6() {
                "fd77::fe"
            } else {
                GATEWAY
            };
            if is_elsewhere(address) {
                let outside = self.lab.outside();
                outside.ip(&format!("address replace {address} dev lo"))?;
                self.pod
                    .ip(&format!("route replace {address} via {gateway}"))?;
            }
        }
        Ok(())
    }

    /// What istio-init does beside the rules.
    fn route_back(&self, wanted: Option<ReturnRoute>) -> Result<()> {
        for family in ["-4", "-6"] {
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

    /// Opens the capture ports that nobody listens on.
    fn open_sidecar(&mut self, target: &Target) -> Result<()> {
        for port in [target.policy.outbound_port, target.policy.inbound_port] {
            if let Entry::Vacant(vacant) = self.served.entry(port) {
                vacant.insert(listen_transparently(&self.servers, &target.proxy(), port)?);
            }
        }
        Ok(())
    }

    /// Only policies in mode TPROXY and those with DNS capture print rules of these tables.
    fn flush_mangle_and_raw(&self) -> Result<()> {
        let netns = &self.pod.netns;
        for program in ["iptables", "ip6tables"] {
            for (table, flag) in [
                ("mangle", "-F"),
                ("mangle", "-X"),
                ("raw", "-F"),
                ("raw", "-X"),
            ] {
                run_words(&["ip", "netns", "exec", netns, program, "-t", table, flag])?;
            }
        }
        Ok(())
    }

    /// Where the agent looks for a pod whose processes are in the node's mount namespace.
    fn write_resolv_conf(&self, target: &Target) -> Result<()> {
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
    fn close_sidecar(&mut self, target: &Target) -> Result<()> {
        for port in [target.policy.outbound_port, target.policy.inbound_port] {
            for id in self.served.remove(&port).into_iter().flatten() {
                self.servers.close(id, 0)?;
            }
        }
        Ok(())
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

    fn restore(&self, program: &str, file: &Path) -> Result<()> {
        let netns = &self.pod.netns;
        let file = file.to_string_lossy();
        run_words(&["ip", "netns", "exec", netns, program, &file]).map(drop)
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

/// Both.
pub struct PodPair {
    agent: Agent,
    /// With iptables rules.
    pub oracle: PairedPod,
    /// Enrolled.
    pub ours: PairedPod,
    /// Where the agent serves metrics.
    pub metrics: String,
}

impl PodPair {
    /// Builds both; nothing is redirected yet.
    pub fn new() -> Result<Self> {
        let oracle = PairedPod::new()?;
        let ours = PairedPod::new()?;
        let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
        let metrics = listener.local_addr()?.to_string();
        drop(listener);
        let counted = [
            "--metrics-addr",
            &metrics,
            "--metrics-per-pod",
            "1",
            "--ambient",
        ];
        Ok(Self {
            agent: Agent::start_with(ours.lab.places(), &Extra::arguments(&counted))?,
            oracle,
            ours,
            metrics,
        })
    }

    /// Ends both sidecars.
    pub fn close_sidecars(&mut self, target: &Target) -> Result<()> {
        self.oracle.close_sidecar(target)?;
        self.ours.close_sidecar(target)
    }

    /// Starts both again.
    pub fn open_sidecars(&mut self, target: &Target) -> Result<()> {
        self.oracle.open_sidecar(target)?;
        self.ours.open_sidecar(target)
    }

    /// Where the agent keeps things.
    pub fn places(&self) -> &Places {
        &self.agent.places
    }

    /// Puts both under a policy.
    pub fn set(&mut self, target: &Target) -> Result<()> {
        for pod in [&mut self.oracle, &mut self.ours] {
            pod.prepare(target)?;
        }
        let netns = self.ours.pod.path();
        let text = target.manifest(&netns);
        self.ours.write_resolv_conf(target)?;
        let wanted = target.policy.return_route();
        self.oracle.route_back(wanted)?;
        self.oracle.routed_back = wanted;
        self.oracle.flush_mangle_and_raw()?;
        match &target.rules {
            Rules::Ours => {
                for (flag, restore) in [("", "iptables-restore"), ("-6", "ip6tables-restore")] {
                    let file = self.printed_rules(target, &netns, flag)?;
                    self.oracle.restore(restore, &file)?;
                }
            }
            Rules::Files(rules, rules6) => {
                self.oracle.restore("iptables-restore", rules)?;
                if let Some(rules6) = rules6 {
                    self.oracle.restore("ip6tables-restore", rules6)?;
                }
            }
        }
        // Connections of the last policy keep their translation; their ports may come again.
        let netns = &self.oracle.pod.netns;
        output(&["ip", "netns", "exec", netns, "conntrack", "-F"])?;
        self.enroll(&text).with_context(|| target.name.clone())
    }

    /// The rules as the command prints them.
    fn printed_rules(&self, target: &Target, netns: &str, flag: &str) -> Result<PathBuf> {
        let file = self.ours.lab.dir().join("policy.json");
        fs::write(&file, target.manifest_of_rules(netns))?;
        let path = file.to_string_lossy();
        let mut words = vec!["rules", "--ambient", "--manifest", &path];
        words.extend(["--format", "iptables"]);
        words.extend((!flag.is_empty()).then_some(flag));
        let servers = target.servers.iter().flatten();
        let servers: Vec<String> = servers.map(IpAddr::to_string).collect();
        words.extend(servers.iter().flat_map(|server| ["--dns-server", server]));
        let rules = self.agent.places.output(&words)?;
        if !rules.status.success() {
            bail!("{}", String::from_utf8_lossy(&rules.stderr));
        }
        let file = self.ours.lab.dir().join("rules");
        fs::write(&file, rules.stdout)?;
        Ok(file)
    }

    /// From scratch, so that nothing of the last policy is mistaken for this one.
    fn enroll(&self, text: &str) -> Result<()> {
        let places = &self.agent.places;
        if places.pod("test/app")?.is_some() {
            self.ours.lab.release("app")?;
        }
        self.ours.lab.write_manifest("app", text)?;
        places.wait_enrolled("test/app")?;
        for _ in 0..100 {
            let up = |pod: Option<Value>| pod.is_some_and(|pod| pod["listener"] == true);
            if up(places.pod("test/app")?) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!(
            "the sidecar's listeners were not adopted:\n{}",
            places.log()
        )
    }
}
