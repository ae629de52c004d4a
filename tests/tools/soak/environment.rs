//! The pods: some that stay, some that come and go, one whose sidecar hangs, and the outside.

mod others;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lab::{
    agent::Places,
    helper::Helper,
    network::{Lab, PodNet, set_sysctl},
    protocol::{APP, PROXY, ROOT},
    wait::eventually,
};
use parking_lot::Mutex;

use crate::{
    account::Account,
    helpers::{Dialer, serve},
    targets::{
        ASIDE, ASIDE6, CHAIN, EXCLUDED, HEALTH, Kind, Known, Mode, NOWHERE, OTHER, Policy, SELF,
        SIDECAR_IN, SIDECAR_OUT, VIP, VIP6, WEB,
    },
    timeline::{State, Timeline},
    wire::{Order, Target, Who, Work},
};

/// Rules that capture loopback addresses leave a pod no targets, so that its connections have handshake rows.
const WITHOUT_TARGETS: (&str, &str) = (
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
    "10.0.0.0/8,fd00::/8,127.0.0.0/8",
);
/// Pods that stay.
pub const STAYING: u16 = 4;
/// The one of them that forwards packets of a machine.
const FORWARDING: u16 = 2;
/// The one of them in mode TPROXY.
const TRANSPARENT: u16 = 3;
/// The pod whose sidecar hangs.
pub const HANGING: u16 = 9;
/// Numbers of pods that come and go begin here.
pub const COMING: u16 = 20;
/// Longest wait for an agent to do something: it is killed all the time.
const WAIT_TIMEOUT: Duration = Duration::from_secs(90);
/// Listeners a sidecar has for inbound connections.
pub const LISTENERS: usize = 4;

/// Everything. Fields drop in order: processes before what they run in.
pub struct Environment {
    /// The pods that stay.
    pub pods: Vec<Pod>,
    /// What dials beside the pods' apps and sidecars, and where.
    others: Vec<(Dialer, Known)>,
    outside: Dialer,
    _outside_server: Helper,
    _hanging_sidecar: Helper,
    /// The pod whose sidecar hangs.
    pub hanging: PodNet,
    /// The books.
    pub account: Arc<Account>,
    /// Of the random order.
    pub seed: u64,
    /// Set when chaos is to end.
    pub stop: AtomicBool,
    /// Set when agents are not to be killed any more; before that.
    pub calm: AtomicBool,
    lab: Mutex<Lab>,
    /// Where the agent keeps things.
    pub places: Places,
}

/// A pod.
pub struct Pod {
    number: u16,
    /// Its network.
    pub net: PodNet,
    /// What may be the case with it.
    pub timeline: Arc<Timeline>,
    /// Its sidecar; locked while it is restarted or receives an order.
    pub sidecar: Mutex<Helper>,
    _app: Helper,
    /// Connects as the app.
    pub app_dialer: Dialer,
    /// Connects as the sidecar.
    pub proxy_dialer: Dialer,
    inbound: Vec<u32>,
}

impl Pod {
    /// In the manifest.
    pub fn name(&self) -> String {
        name(self.number)
    }

    /// Its number in the account.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Kills everything in it.
    pub fn end(self) -> PodNet {
        self.net
    }
}

fn name(number: u16) -> String {
    format!("pod{number}")
}

/// Of the pods that come and go, each second one is in mode TPROXY as well.
fn mode(number: u16) -> Mode {
    if number == TRANSPARENT || number >= COMING && number % 2 == 1 {
        Mode::Tproxy
    } else {
        Mode::Redirect
    }
}

impl Environment {
    /// Builds it; there are no connections and no agent yet.
    pub fn new(seed: u64) -> Result<Self> {
        let mut lab = Lab::new()?;
        for address in [VIP, VIP6, ASIDE, ASIDE6] {
            lab.add_outside(address)?;
        }
        let out = lab.outside();
        let account = Arc::new(Account::new(lab.places().clone(), out.clone()));
        let outside_server = serve(
            &out,
            &ROOT,
            Work::Serve {
                who: Who::Outside,
                ports: vec![WEB, CHAIN, OTHER, EXCLUDED],
            },
        )?;
        let outside = Dialer::start(&out, &ROOT, dialers(2, seed), &account)?;
        let hanging = lab.pod(&name(HANGING), address_of(HANGING))?;
        set_sysctl(&hanging.netns, "net/ipv4/ip_local_port_range", "1024 65000")?;
        let hanging_sidecar = serve(
            &hanging,
            &PROXY,
            Work::Hang {
                ports: vec![SIDECAR_OUT],
            },
        )?;
        let places = lab.places().clone();
        let mut environment = Self {
            pods: Vec::new(),
            others: Vec::new(),
            outside,
            _outside_server: outside_server,
            _hanging_sidecar: hanging_sidecar,
            hanging,
            account,
            seed,
            stop: AtomicBool::new(false),
            calm: AtomicBool::new(false),
            lab: Mutex::new(lab),
            places,
        };
        for number in 0..STAYING {
            let pod = environment.pod(number, State::settled(Policy::FIRST))?;
            environment.pods.push(pod);
        }
        environment.others = vec![environment.machine()?, environment.transparent_proxy()?];
        environment.write_manifest(HANGING, &environment.hanging, Policy::FIRST)?;
        for pod in &environment.pods {
            environment.write_manifest(pod.number, &pod.net, Policy::FIRST)?;
        }
        Ok(environment)
    }

    /// Whether chaos continues.
    pub fn continues(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Sleeps, but not past the end of chaos.
    pub fn pause(&self, pause: Duration) {
        let start = Instant::now();
        while self.continues() && start.elapsed() < pause {
            thread::sleep(Duration::from_millis(20).min(pause));
        }
    }

    /// Makes a pod with its processes. What is dialed from it and to it is known, nothing dials yet.
    pub fn pod(&self, number: u16, state: State) -> Result<Pod> {
        let net = {
            let mut lab = self.lab.lock();
            let octet = address_of(number);
            lab.pod(&name(number), octet)?
        };
        // Linux drops what waits in the queue of a listener that closes, unless this setting moves
        // it to another listener of the group. With it, whatever is lost here is lost by us, but
        // for what `reset_by_a_byte` of the dialing process describes.
        set_sysctl(&net.netns, "net/ipv4/tcp_migrate_req", "1")?;
        for (kind, ranges, _, _) in NOWHERE {
            for range in ranges {
                net.ip(&format!("route add {kind} {range} metric 1"))?;
            }
        }
        let timeline = Arc::new(Timeline::new(state));
        self.account.add_pod(number, &net, Arc::clone(&timeline));
        let sidecar = self.start_sidecar(number, &net)?;
        let app = serve(
            &net,
            &APP,
            Work::Serve {
                who: Who::App(number),
                ports: vec![WEB, CHAIN, OTHER, EXCLUDED],
            },
        )?;
        let seed = self.seed ^ u64::from(number) << 8;
        let app_dialer = Dialer::start(&net, &APP, dialers(2, seed), &self.account)?;
        let proxy_dialer = Dialer::start(&net, &PROXY, dialers(1, seed + 1), &self.account)?;
        Ok(Pod {
            number,
            net,
            timeline,
            sidecar: Mutex::new(sidecar),
            _app: app,
            app_dialer,
            proxy_dialer,
            inbound: Vec::new(),
        })
    }

    /// Starts a pod's sidecar.
    pub fn start_sidecar(&self, number: u16, net: &PodNet) -> Result<Helper> {
        let sidecar = serve(
            net,
            &PROXY,
            Work::Serve {
                who: Who::Sidecar(number),
                ports: vec![SIDECAR_OUT, SIDECAR_IN, HEALTH],
            },
        )?;
        sidecar.send(&Order::Keep(SIDECAR_IN, LISTENERS))?;
        sidecar.hear::<String>()?;
        Ok(sidecar)
    }

    /// Starts it again in a pod that stays.
    pub fn restart_sidecar(&self, pod: &Pod) -> Result<Helper> {
        self.start_sidecar(pod.number, &pod.net)
    }

    /// Makes the pods that stay dial each other, and the outside dial them.
    pub fn begin(&mut self) -> Result<()> {
        for index in 0..self.pods.len() {
            let next = &self.pods[(index + 1) % self.pods.len()];
            let peer = (next.number, &next.net);
            let inbound = self.connect(&self.pods[index], peer)?;
            self.pods[index].inbound = inbound;
        }
        for (dialer, known) in &self.others {
            self.account.announce(std::slice::from_ref(known));
            dialer.send(&Order::Add(vec![known.target.clone()]))?;
        }
        Ok(())
    }

    /// Makes a pod dial, also another pod, and be dialed; returns the targets of what dials it.
    pub fn connect(&self, pod: &Pod, peer: (u16, &PodNet)) -> Result<Vec<u32>> {
        let [app, proxy, outside] = targets(pod, peer);
        for known in [&app, &proxy, &outside] {
            self.account.announce(known);
        }
        let wire = |known: &[Known]| known.iter().map(|it| it.target.clone()).collect();
        pod.app_dialer.send(&Order::Add(wire(&app)))?;
        pod.proxy_dialer.send(&Order::Add(wire(&proxy)))?;
        self.outside.send(&Order::Add(wire(&outside)))?;
        Ok(outside.iter().map(|it| it.target.id).collect())
    }

    /// Ends connections from outside to these.
    pub fn disconnect(&self, inbound: Vec<u32>) -> Result<()> {
        self.outside.send(&Order::Remove(inbound))
    }

    /// Writes a pod's manifest with a policy.
    pub fn write_manifest(&self, number: u16, net: &PodNet, policy: Policy) -> Result<()> {
        let name = name(number);
        let mut annotations = policy.annotations(mode(number));
        if number == HANGING {
            let (name, ranges) = WITHOUT_TARGETS;
            annotations.push((name.to_owned(), ranges.to_owned()));
        }
        let annotations: Vec<(&str, &str)> = annotations
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let lab = self.lab.lock();
        lab.write_pod(&name, net, &annotations)
    }

    /// Removes a pod's manifest.
    pub fn remove_manifest(&self, name: &str) -> Result<()> {
        self.lab.lock().remove_manifest(name)
    }

    /// Waits until an agent reports that a pod has a policy.
    pub fn wait_policy(&self, name: &str, policy: Policy) -> Result<Duration> {
        let full = format!("test/{name}");
        self.wait(name, |row| {
            let has_it = || {
                // The list of pods leaves long policies out.
                let pod = self.places.whole_pod(&full).ok()?;
                let excluded = &pod.policy?.excluded_outbound_ports;
                let marker = u32::from(policy.marker());
                Some(excluded.iter().any(|span| span.contains(marker)))
            };
            row.is_some_and(|row| row["state"] == "enrolled" && row["reason"].is_null())
                && has_it() == Some(true)
        })
    }

    fn wait(
        &self,
        name: &str,
        wanted: impl Fn(Option<&serde_json::Value>) -> bool,
    ) -> Result<Duration> {
        let start = Instant::now();
        eventually(WAIT_TIMEOUT, || {
            let row = self.places.pod(&format!("test/{name}"))?;
            ensure!(wanted(row.as_ref()), "{name}: {row:?}");
            Ok(start.elapsed())
        })
    }

    /// Ends all dialing; every connection is in the account then.
    pub fn end_dialing(&self) -> Result<()> {
        for pod in &self.pods {
            self.disconnect(pod.inbound.clone())?;
        }
        for pod in &self.pods {
            pod.app_dialer.send(&Order::End)?;
            pod.proxy_dialer.send(&Order::End)?;
            pod.app_dialer.wait();
            pod.proxy_dialer.wait();
        }
        for (other, _) in &self.others {
            other.send(&Order::End)?;
            other.wait();
        }
        self.outside.send(&Order::End)?;
        self.outside.wait();
        Ok(())
    }

    /// Removes a pod that is gone from the machine.
    pub fn remove(&self, net: &PodNet) -> Result<()> {
        lab::command::run(&format!("ip netns del {}", net.netns))?;
        lab::ledger::remove_cgroup(&net.cgroup);
        Ok(())
    }
}

/// The last octet of a pod's addresses; pods that come and go use theirs again.
fn address_of(number: u16) -> u8 {
    const FIRST: u16 = 2;
    const ADDRESSES: u16 = 200;
    let octet = match number.checked_sub(COMING) {
        Some(coming) => FIRST + COMING + coming % ADDRESSES,
        None => FIRST + number,
    };
    octet as u8
}

fn dialers(threads: usize, seed: u64) -> Work {
    const PAUSE: u64 = 15;
    Work::Dial {
        threads,
        pause: PAUSE,
        seed,
    }
}

/// What the app, the sidecar and the outside dial: the same by both families, with few exceptions.
fn targets(pod: &Pod, (peer, peer_net): (u16, &PodNet)) -> [Vec<Known>; 3] {
    let net = &pod.net;
    let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let known = |kind, to, port, client, server, source| Known {
        target: Target {
            mapped: kind == Kind::OutMapped,
            bind: (kind == Kind::ProxyToApp).then_some(SELF),
            ..Target::new(SocketAddr::new(to, port))
        },
        kind,
        client,
        server,
        source,
    };
    let from =
        |kind, to, port, server, source| known(kind, to, port, Some(pod.number), server, source);
    let to = |kind, to, port, gateway| known(kind, to, port, None, Some(pod.number), gateway);
    let [mut app, mut proxy, mut outside] = [const { Vec::new() }; 3];
    for family in [0, 1] {
        let of = |addresses: [&str; 2]| ip(addresses[family]);
        let own = [net.v4, net.v6][family];
        let peer_ip = [peer_net.v4, peer_net.v6][family];
        let gateway = of([lab::network::GATEWAY, "fd77::fe"]);
        let (vip, aside) = (of([VIP, VIP6]), of([ASIDE, ASIDE6]));
        let loopback = of(["127.0.0.1", "::1"]);
        app.extend([
            from([Kind::OutV4, Kind::OutV6][family], vip, WEB, None, own),
            from(Kind::OutOther, vip, OTHER, None, own),
            from(Kind::OutAside, aside, WEB, None, own),
            from(Kind::OutExcluded, vip, EXCLUDED, None, own),
            from(Kind::OutSelf, own, WEB, None, own),
            from(Kind::OutLoopback, loopback, WEB, None, loopback),
            from(Kind::PodToPod, peer_ip, CHAIN, Some(peer), own),
        ]);
        app.extend(
            NOWHERE.map(|(_, _, to, errno)| from(Kind::OutNowhere(errno), of(to), WEB, None, own)),
        );
        proxy.extend([
            from(Kind::ProxyOut, peer_ip, WEB, Some(peer), own),
            from(Kind::ProxySelf, own, WEB, None, own),
        ]);
        outside.extend([
            to([Kind::InV4, Kind::InV6][family], own, WEB, gateway),
            to(Kind::InOther, own, OTHER, gateway),
            to(Kind::InExcluded, own, EXCLUDED, gateway),
            to(Kind::InHealth, own, HEALTH, gateway),
        ]);
    }
    app.push(from(Kind::OutMapped, ip(VIP), WEB, None, net.v4));
    // `::6` is there only while the pod is enrolled.
    proxy.push(from(Kind::ProxyToApp, net.v4, WEB, None, SELF));
    [app, proxy, outside]
}
