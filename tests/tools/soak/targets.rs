//! Where connections go, the policies that pods flip between, and what is to become of a connection
//! under each: written down here by hand, not read from the code under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::{Target, Who};

/// The sidecar's port for outbound connections.
pub const SIDECAR_OUT: u16 = 15001;
/// The sidecar's port for inbound connections.
pub const SIDECAR_IN: u16 = 15006;
/// The sidecar's health port, which is never captured.
pub const HEALTH: u16 = 15021;
/// An app's port, and a service's.
pub const WEB: u16 = 80;
/// As [`WEB`]; sidecars hand these connections on.
pub const CHAIN: u16 = 8888;
/// As [`WEB`]; some policies leave it alone.
pub const OTHER: u16 = 9090;
/// As [`WEB`]; all policies leave it alone.
pub const EXCLUDED: u16 = 7070;

/// A service.
pub const VIP: &str = "10.109.118.31";
/// The same, by IPv6.
pub const VIP6: &str = "fd99::31";
/// A service in a range that some policies leave alone.
pub const ASIDE: &str = "10.109.200.1";
/// The same, by IPv6.
pub const ASIDE6: &str = "fd99:200::1";
/// Routes that lead nowhere, and what connect says to them.
pub const NOWHERE: [(&str, [&str; 2], [&str; 2], i32); 3] = [
    (
        "blackhole",
        ["10.201.0.0/16", "fdb1::/64"],
        ["10.201.0.1", "fdb1::1"],
        libc::EINVAL,
    ),
    (
        "unreachable",
        ["10.202.0.0/16", "fdb2::/64"],
        ["10.202.0.1", "fdb2::1"],
        libc::EHOSTUNREACH,
    ),
    (
        "prohibit",
        ["10.203.0.0/16", "fdb3::/64"],
        ["10.203.0.1", "fdb3::1"],
        libc::EACCES,
    ),
];
/// The source a sidecar has toward its app.
pub const SELF: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6));
/// The same, by IPv6. Pods have it while they are enrolled.
pub const SELF6: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6));

/// A client that a sidecar calls its app for; no process has this address.
pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
/// The mark of such calls.
pub const MARK: u32 = 1337;

/// What kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// App to a service.
    OutV4,
    /// App to a service by IPv6.
    OutV6,
    /// App to an IPv4 service on an IPv6 socket.
    OutMapped,
    /// App to a service's port that some policies leave alone.
    OutOther,
    /// App to a service in a range that some policies leave alone.
    OutAside,
    /// App to a port that all policies leave alone.
    OutExcluded,
    /// App to its own pod's address.
    OutSelf,
    /// App to 127.0.0.1.
    OutLoopback,
    /// App to an address without a usable route.
    OutNowhere(i32),
    /// App to an app in another pod, through both sidecars.
    PodToPod,
    /// Sidecar to another pod.
    ProxyOut,
    /// Sidecar to its own pod's address.
    ProxySelf,
    /// Sidecar to its app, from 127.0.0.6.
    ProxyToApp,
    /// Sidecar to its app, from a client's address (mode TPROXY).
    ProxyAsClient,
    /// A machine behind a pod to a service, by IPv6.
    Through,
    /// Outside to a pod.
    InV4,
    /// Outside to a pod by IPv6.
    InV6,
    /// Outside to a port that some policies leave alone.
    InOther,
    /// Outside to a port that all policies leave alone.
    InExcluded,
    /// Outside to the sidecar's health port.
    InHealth,
}

impl Kind {
    /// In the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::OutV4 => "app -> service",
            Self::OutV6 => "app -> service, IPv6",
            Self::OutMapped => "app -> service, v4-mapped",
            Self::OutOther => "app -> port excluded at times",
            Self::OutAside => "app -> range excluded at times",
            Self::OutExcluded => "app -> port always excluded",
            Self::OutSelf => "app -> own IP",
            Self::OutLoopback => "app -> 127.0.0.1",
            Self::OutNowhere(_) => "app -> no usable route",
            Self::PodToPod => "app -> sidecar -> sidecar -> app",
            Self::ProxyOut => "sidecar -> other pod",
            Self::ProxySelf => "sidecar -> own IP",
            Self::ProxyToApp => "sidecar -> app, from 127.0.0.6",
            Self::ProxyAsClient => "sidecar -> app, from a client's IP",
            Self::Through => "machine behind a pod -> service, IPv6",
            Self::InV4 => "outside -> pod",
            Self::InV6 => "outside -> pod, IPv6",
            Self::InOther => "outside -> port excluded at times",
            Self::InExcluded => "outside -> port always excluded",
            Self::InHealth => "outside -> health port",
        }
    }
}

/// How a pod's inbound connections are captured; outbound ones are redirected in both modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Istio's default.
    Redirect,
    /// The sidecar may call the app from the client's address.
    Tproxy,
}

/// A policy by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub u16);

/// What the sidecar is to have of outbound connections: a service aside, the port.
type Captures = fn(aside: bool, port: u16) -> bool;

struct Spec {
    annotations: &'static [(&'static str, &'static str)],
    outbound: Captures,
    inbound: fn(port: u16) -> bool,
}

/// Every policy; the one that excludes many ranges and ports has them added.
const SPECS: [Spec; 6] = [
    Spec {
        annotations: &[("excludeInboundPorts", "7070")],
        outbound: |_, _| true,
        inbound: |_| true,
    },
    Spec {
        annotations: &[("excludeInboundPorts", "7070,9090")],
        outbound: |_, port| port != OTHER,
        inbound: |port| port != OTHER,
    },
    Spec {
        annotations: &[
            ("includeOutboundIPRanges", "10.0.0.0/8,fd00::/8"),
            ("excludeOutboundIPRanges", "10.109.200.0/24,fd99:200::/64"),
            ("excludeInboundPorts", "7070"),
        ],
        outbound: |aside, _| !aside,
        inbound: |_| true,
    },
    Spec {
        annotations: &[
            ("includeOutboundIPRanges", ""),
            ("includeOutboundPorts", "80,8888"),
            ("includeInboundPorts", "80,8888"),
        ],
        outbound: |_, port| port != OTHER,
        inbound: |port| port != OTHER,
    },
    Spec {
        annotations: &[("excludeInterfaces", "eth0")],
        outbound: |_, _| false,
        inbound: |_| false,
    },
    Spec {
        annotations: &[("excludeInboundPorts", "7070")],
        outbound: |_, _| true,
        inbound: |_| true,
    },
];
const EXCLUDES_OTHER: u16 = 1;
const MANY: u16 = 5;
const MANY_ROWS: usize = 400;
/// A port without connections identifies the active policy.
const MARKER: u16 = 60_000;

impl Policy {
    /// What pods have at the start and at the end.
    pub const FIRST: Self = Self(0);
    /// All.
    pub const COUNT: u16 = SPECS.len() as u16;

    /// The annotations that make it in a mode.
    pub fn annotations(self, mode: Mode) -> Vec<(String, String)> {
        let mut excluded = vec![self.marker(), EXCLUDED];
        if self.0 == EXCLUDES_OTHER {
            excluded.push(OTHER);
        }
        let spec = &SPECS[usize::from(self.0)];
        let mut annotations: Vec<(String, String)> = spec
            .annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        if self.0 == MANY {
            excluded.extend((0..MANY_ROWS as u16).map(|number| 20_000 + number));
            let ranges: Vec<String> = (0..MANY_ROWS)
                .map(|number| format!("11.{}.{}.0/24", number / 256, number % 256))
                .collect();
            annotations.push(("excludeOutboundIPRanges".to_owned(), ranges.join(",")));
        }
        let ports: Vec<String> = excluded.iter().map(ToString::to_string).collect();
        annotations.push(("excludeOutboundPorts".to_owned(), ports.join(",")));
        let prefixed = annotations
            .into_iter()
            .map(|(name, value)| (format!("traffic.sidecar.istio.io/{name}"), value));
        let mode = (mode == Mode::Tproxy).then(|| {
            let name = "sidecar.istio.io/interceptionMode";
            (name.to_owned(), "TPROXY".to_owned())
        });
        prefixed.chain(mode).collect()
    }

    /// The port it excludes and no other policy does.
    pub fn marker(self) -> u16 {
        MARKER + self.0
    }

    fn captures_out(self, aside: bool, port: u16) -> bool {
        port != EXCLUDED && (SPECS[usize::from(self.0)].outbound)(aside, port)
    }

    fn captures_in(self, port: u16) -> bool {
        port != EXCLUDED && port != HEALTH && (SPECS[usize::from(self.0)].inbound)(port)
    }
}

/// A target with everything that is known of it.
#[derive(Clone, Debug)]
pub struct Known {
    /// As the dialing process has it.
    pub target: Target,
    /// What it is.
    pub kind: Kind,
    /// The pod it is dialed from.
    pub client: Option<u16>,
    /// The pod it is in.
    pub server: Option<u16>,
    /// The address connections are to come from.
    pub source: IpAddr,
}

/// How a connection may end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is accepted by these, in order: who, and on which port it listens.
    By(Vec<(Who, u16)>),
    /// connect fails like this.
    Fails(i32),
}

impl Known {
    /// How it is to end when the pods at its two ends have these policies; `None` is a pod that is not
    /// enrolled.
    pub fn ending(&self, client: Option<Policy>, server: Option<Policy>) -> Ending {
        let port = self.target.to.port();
        let out = |aside| client.is_some_and(|policy| policy.captures_out(aside, port));
        let arrives = server.is_some_and(|policy| policy.captures_in(port));
        let own = self.client.unwrap_or_default();
        let other = self.server.unwrap_or_default();
        let one = |who, port| Ending::By(vec![(who, port)]);
        match self.kind {
            Kind::OutV4 | Kind::OutV6 | Kind::OutMapped | Kind::OutOther | Kind::OutExcluded
                if out(false) =>
            {
                one(Who::Sidecar(own), SIDECAR_OUT)
            }
            Kind::OutAside if out(true) => one(Who::Sidecar(own), SIDECAR_OUT),
            Kind::OutV4
            | Kind::OutV6
            | Kind::OutMapped
            | Kind::OutOther
            | Kind::OutExcluded
            | Kind::OutAside => one(Who::Outside, port),
            Kind::OutNowhere(errno) => Ending::Fails(errno),
            Kind::ProxySelf if client.is_some() => one(Who::Sidecar(own), SIDECAR_IN),
            Kind::OutSelf
            | Kind::OutLoopback
            | Kind::ProxySelf
            | Kind::ProxyToApp
            | Kind::ProxyAsClient => one(Who::App(own), port),
            // Every policy captures it: none excludes the interface toward the machine.
            Kind::Through if client.is_some() => one(Who::Sidecar(own), SIDECAR_IN),
            Kind::Through => one(Who::Outside, port),
            Kind::InHealth => one(Who::Sidecar(other), HEALTH),
            Kind::PodToPod => {
                let first = out(false).then_some((Who::Sidecar(own), SIDECAR_OUT));
                let second = arrives.then_some((Who::Sidecar(other), SIDECAR_IN));
                let hops = first.into_iter().chain(second);
                Ending::By(hops.chain([(Who::App(other), port)]).collect())
            }
            Kind::ProxyOut | Kind::InV4 | Kind::InV6 | Kind::InOther | Kind::InExcluded => {
                if arrives {
                    one(Who::Sidecar(other), SIDECAR_IN)
                } else {
                    one(Who::App(other), port)
                }
            }
        }
    }

    /// Where it goes, for people.
    pub fn to(&self) -> SocketAddr {
        self.target.to
    }
}
