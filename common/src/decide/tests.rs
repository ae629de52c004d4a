//! The pod of the decision's tests. The tests are in a file for each part of docs/semantics.md.

mod ahead;
mod dialects;
mod dns;
mod inbound_table;
mod lists;
mod marked;
mod outbound_table;
mod owners;
mod routes;
mod transparent_mode;

use std::collections::HashMap;

use super::{Decision, Inbound, Outbound, Owner, Tables, Verdict, outbound};
use crate::{
    addr::{Addr, Family},
    pod::{IfaceRow, Route, RouteKind},
    policy::{
        DIALECT_SELF_EXEMPT, DIALECT_TUNNEL_IN, DIALECT_TUNNEL_OUT, InboundMode, List, Policy,
    },
    rule::Rule,
};

const POD: Addr = Addr::v4([10, 0, 0, 2]);
const SECOND: Addr = Addr::v4([10, 0, 1, 2]);
const VIP: Addr = Addr::v4([10, 109, 118, 31]);
const LO2: Addr = Addr::v4([127, 0, 0, 2]);
const APP: Owner = Owner {
    uid: 1000,
    gid: 1000,
};
const PROXY: Owner = Owner {
    uid: 1337,
    gid: 1337,
};

fn v6(last: u8) -> Addr {
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[15] = last;
    Addr::v6(octets)
}

/// A pod with two IPv4 addresses and fd00::2, a default route for both families, and the lists
/// a test adds.
#[derive(Default)]
struct Fixture {
    ports: HashMap<(u16, u16), u32>,
    ranges: Vec<(List, Addr)>,
    owners: HashMap<(u16, u32), u32>,
    device_excluded: bool,
    link_local_own: bool,
    local_excluded: bool,
    no_default_route: bool,
    group_route: bool,
    before_sidecar: bool,
    unknown: bool,
}

impl Tables for Fixture {
    fn port(&self, list: List, port: u16) -> Option<u32> {
        self.ports.get(&(list as u16, port)).copied()
    }

    fn range(&self, list: List, addr: Addr) -> Option<u32> {
        self.ranges
            .iter()
            .position(|(l, a)| *l == list && a.is(addr))
            .map(|position| position as u32)
    }

    fn owner(&self, list: List, id: u32) -> Option<u32> {
        self.owners.get(&(list as u16, id)).copied()
    }

    fn before_sidecar(&self) -> bool {
        self.before_sidecar
    }

    fn route(&self, addr: Addr) -> Route {
        let local = |source| Route {
            kind: RouteKind::Local as u32,
            flags: if self.local_excluded {
                Route::excluding(0)
            } else {
                0
            },
            ifindex: 1,
            source,
        };
        if self.unknown {
            return Route {
                kind: RouteKind::Unknown as u32,
                ..Route::NONE
            };
        }
        if addr.is_loopback() && addr.family() == Family::V4 {
            return local(Addr::LOOPBACK_V4);
        }
        if [POD, SECOND, v6(2), Addr::LOOPBACK_V6, Addr::SELF_V6]
            .iter()
            .any(|own| own.is(addr))
        {
            return local(addr);
        }
        if self.link_local_own && addr.is_link_local() {
            return local(addr);
        }
        if self.no_default_route {
            return Route::NONE;
        }
        Route {
            kind: if self.group_route {
                RouteKind::Group as u32
            } else {
                RouteKind::Unicast as u32
            },
            flags: if self.device_excluded {
                Route::excluding(0)
            } else {
                0
            },
            ifindex: 2,
            source: match addr.family() {
                Family::V4 => POD,
                Family::V6 => v6(2),
            },
        }
    }
}

fn default_policy() -> Policy {
    Policy {
        outbound_port: 15001,
        inbound_port: 15006,
        tunnel_port: 15008,
        inbound: InboundMode::AllExcept as u8,
        outbound_all: 1,
        loopback_included: 0,
        loopback_v4_prefix: 32,
        dialect: DIALECT_SELF_EXEMPT | DIALECT_TUNNEL_OUT | DIALECT_TUNNEL_IN,
        virtual_interfaces: 0,
        loopback_v4: [127, 0, 0, 1],
        lists: 0,
        proxy_uid: 1337,
        proxy_gid: 1337,
        transparent_mark: 0,
    }
}

fn dial(owner: Owner, source: Addr, destination: Addr, port: u16) -> Outbound {
    Outbound {
        owner,
        source,
        destination,
        port,
        mark: 0,
        routing_header: false,
        captured_family: true,
    }
}

/// The capture port, or 0 for untouched.
fn port_of(decision: Decision) -> u16 {
    match decision.verdict {
        Verdict::Untouched | Verdict::BindToLoopback | Verdict::Mark => 0,
        Verdict::Redirect { port, .. } | Verdict::Assign { port, .. } => port,
        Verdict::Fail { .. } => u16::MAX,
    }
}

#[track_caller]
fn expect(owner: Owner, source: Addr, destination: Addr, port: u16, want: u16, rule: Rule) {
    let decision = outbound(
        &default_policy(),
        &dial(owner, source, destination, port),
        &Fixture::default(),
    );
    assert_eq!((port_of(decision), decision.rule), (want, rule));
}

const ANY: Addr = Addr::UNSPECIFIED;
const ANY_V4: Addr = Addr::v4([0, 0, 0, 0]);

fn with(list: List, fixture: Fixture, change: impl FnOnce(&mut Policy)) -> (Policy, Fixture) {
    let mut policy = default_policy();
    policy.lists = list.bit();
    change(&mut policy);
    (policy, fixture)
}

fn syn_from(source: Addr, port: u16) -> Inbound {
    Inbound {
        source,
        destination: POD,
        port,
        iface: IfaceRow::PLAIN,
        captured_family: true,
    }
}

const REMOTE: Addr = Addr::v4([10, 0, 0, 9]);

fn with_exempt_ports() -> (Policy, Fixture) {
    let exempt = [(15090, 0), (15021, 1), (15020, 2)];
    with(
        List::InPort,
        Fixture {
            ports: exempt
                .iter()
                .map(|(port, index)| ((List::InPort as u16, *port), *index))
                .collect(),
            ..Fixture::default()
        },
        |_| {},
    )
}
