//! A connection and its pod: the inputs of the decision, and the packet that netfilter would see.
//! Routes and source addresses, which the kernel selects before any rule, are the same for both.
//!
//! By design the decision differs from the rules where no packet is sent or no rule applies: no
//! route, a loopback source that cannot leave (EINVAL), SO_BINDTODEVICE, connections from the pod to
//! itself, a family that is not captured. The fixture has no such cases.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sidetrack_common::{
    addr::{Addr, Family},
    decide::{self, Decision, Inbound, Outbound, Owner},
    pod::{Route, RouteKind},
    policy::NO_ID,
};
use sidetrack_policy::{
    interfaces,
    policy::Policy,
    rules::{ListTables, Routes},
};

use crate::netfilter::{Hook, Packet};

/// A policy, and a connection to evaluate.
#[derive(Clone, Debug)]
pub struct Case {
    /// The policy.
    pub policy: Policy,
    /// Which of its two rule lists.
    pub family: Family,
    /// The pod.
    pub pod: Pod,
    /// The connection.
    pub connection: Connection,
}

/// A pod's routes: its own addresses are local, everything else leaves by one device.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The pod's addresses beside its loopback ones, the preferred one of each family first.
    pub own: Vec<IpAddr>,
    /// The device.
    pub device: String,
}

/// A connection's direction and addresses.
#[derive(Clone, Debug)]
pub enum Connection {
    /// Made in the pod.
    Outbound {
        /// uid and gid; none for the kernel's own sockets.
        owner: Option<(u32, u32)>,
        /// The address the socket is bound to.
        bound: Option<IpAddr>,
        /// What it dials.
        dialed: IpAddr,
        /// What it dials.
        port: u16,
        /// Whether it is a DNS query by UDP: then to port 53.
        udp: bool,
        /// The socket's mark.
        mark: u32,
    },
    /// Made elsewhere, to the pod.
    Inbound {
        /// Not the pod's.
        source: IpAddr,
        /// The pod's.
        destination: IpAddr,
        /// Where it goes.
        port: u16,
        /// The interface it comes by.
        interface: String,
    },
}

const SELF_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6));

impl Pod {
    /// Whether packets to an address stay in the pod.
    pub fn is_local(&self, addr: IpAddr) -> bool {
        addr.is_loopback() || addr == SELF_V6 || self.own.contains(&addr)
    }

    /// Packets to a pod's own address leave by lo, whichever interface holds it.
    fn device_to(&self, addr: IpAddr) -> &str {
        if self.is_local(addr) {
            "lo"
        } else {
            &self.device
        }
    }

    /// The source of an unbound socket: the local routes of 127.0.0.0/8 prefer 127.0.0.1, all others
    /// the address they are for.
    fn source_to(&self, addr: IpAddr) -> IpAddr {
        if addr.is_ipv4() && addr.is_loopback() {
            return Ipv4Addr::LOCALHOST.into();
        }
        let mut own = self.own.iter().copied();
        match own.find(|own| own.is_ipv4() == addr.is_ipv4()) {
            Some(own) if !self.is_local(addr) => own,
            _ => addr,
        }
    }
}

/// A pod's routes with the policy's devices marked, as the agent writes them.
struct PodRoutes<'a>(&'a Case);

impl Routes for PodRoutes<'_> {
    fn route(&self, addr: Addr) -> Route {
        let Case { policy, pod, .. } = self.0;
        let addr = IpAddr::from(addr);
        let device = pod.device_to(addr);
        let kind = if pod.is_local(addr) {
            RouteKind::Local
        } else {
            RouteKind::Unicast
        };
        let excluded = interfaces::position(&policy.excluded_interfaces, device);
        Route {
            kind: kind as u32,
            flags: excluded.map_or(0, |position| Route::excluding(position as u32)),
            ifindex: 0,
            source: pod.source_to(addr).into(),
        }
    }
}

impl Case {
    /// What the kernel programs would do.
    pub fn decision(&self) -> Decision {
        let row = self.policy.compile().row();
        let tables = ListTables {
            policy: &self.policy,
            routes: PodRoutes(self),
            before_sidecar: false,
        };
        match &self.connection {
            Connection::Outbound {
                owner,
                bound,
                dialed,
                port,
                udp,
                mark,
            } => {
                let (uid, gid) = owner.unwrap_or((NO_ID, NO_ID));
                let conn = Outbound {
                    owner: Owner { uid, gid },
                    source: bound.map_or(Addr::UNSPECIFIED, Addr::from),
                    destination: (*dialed).into(),
                    port: *port,
                    mark: *mark,
                    routing_header: false,
                    captured_family: true,
                };
                if *udp {
                    decide::udp(&row, &conn, &tables)
                } else {
                    decide::outbound(&row, &conn, &tables)
                }
            }
            Connection::Inbound {
                source,
                destination,
                port,
                interface,
            } => {
                let syn = Inbound {
                    source: (*source).into(),
                    destination: (*destination).into(),
                    port: *port,
                    iface: self.policy.iface(interface),
                    captured_family: true,
                };
                decide::inbound(&row, &syn, &tables)
            }
        }
    }

    /// What netfilter would see.
    pub fn packet(&self) -> Packet {
        match &self.connection {
            Connection::Outbound {
                owner,
                bound,
                dialed,
                port,
                udp,
                mark,
            } => {
                let destination = destination(*dialed, *bound);
                Packet {
                    hook: Hook::Output {
                        output: self.pod.device_to(destination).to_owned(),
                        owner: *owner,
                    },
                    source: bound.unwrap_or_else(|| self.pod.source_to(destination)),
                    destination,
                    port: *port,
                    udp: *udp,
                    mark: *mark,
                }
            }
            Connection::Inbound {
                source,
                destination,
                port,
                interface,
            } => Packet {
                hook: Hook::Prerouting {
                    input: interface.clone(),
                },
                source: *source,
                destination: *destination,
                port: *port,
                udp: false,
                mark: 0,
            },
        }
    }
}

/// Where a dialed address leads: nowhere in particular means the socket's own address in IPv4,
/// and `::1` in IPv6 whatever the socket is bound to.
pub fn destination(dialed: IpAddr, bound: Option<IpAddr>) -> IpAddr {
    match dialed {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => bound.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        dialed => dialed,
    }
}
