//! Connections that probe a policy where it is likely to be wrong: at its own ports, ranges and
//! owners, at loopback and the pod's own addresses. On each the decision must do what the printed
//! rules do, and name the line that did it.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use sidetrack::{
    policy::{OutboundRanges, Policy},
    rules::{self, KnownRoutes, Line, ListTables, Routes},
};
use sidetrack_common::{
    addr::{Addr, Family},
    decide::{self, Arrival, Decision, Outbound, Owner, Verdict},
    pod::{IfaceRule, ROUTE_DEVICE_EXCLUDED, Route},
    rule::Rule,
};

use super::firewall::{Outcome, Packet, Table};

const OUTBOUND: usize = 16;
const INBOUND: usize = 6;
const DEVICE: &str = "eth0";

/// Checks some connections of one family.
pub fn agree(policy: &Policy, own: &[IpAddr], family: Family, table: &Table) {
    let lines = rules::nat(policy, family);
    let row = policy.compile().row();
    let routes = &LabRoutes {
        known: KnownRoutes {
            own: own_addresses(own),
        },
        policy,
    };
    let tables = ListTables { policy, routes };
    let mut pick = Pick::new(policy);
    let pools = Pools::new(policy, &routes.known.own, family);
    for _ in 0..OUTBOUND {
        let conn = pools.outbound(&mut pick);
        let decision = decide::outbound(&row, &conn, &tables);
        let dialled = decide::effective_destination(&conn);
        let route = routes.route(dialled);
        let bound = !conn.source.is_unspecified();
        let packet = Packet {
            in_device: "",
            out_device: if route.is_local() { "lo" } else { DEVICE },
            source: if bound { conn.source } else { route.source }.into(),
            destination: dialled.into(),
            port: conn.port,
            uid: conn.owner.uid,
            gid: conn.owner.gid,
        };
        let outcome = table.judge("OUTPUT", &packet);
        assert_eq!(dialled.family(), family, "{conn:?}");
        same(&lines, &decision, outcome, &packet);
    }
    // Pods that name virtual interfaces are refused.
    if !policy.virtual_interfaces.is_empty() {
        return;
    }
    for _ in 0..INBOUND {
        let device = pick.of(&pools.devices);
        let excluded = policy.excluded_interfaces.contains(device);
        let syn = Arrival {
            source: pick.of(&pools.strangers).to_owned(),
            destination: *pick.of(&pools.own),
            port: *pick.of(&pools.ports),
            iface: if excluded {
                IfaceRule::Excluded
            } else {
                IfaceRule::Plain
            },
            captured_family: true,
        };
        let decision = decide::inbound(&row, &syn, &tables);
        let packet = Packet {
            in_device: device,
            out_device: "",
            source: syn.source.into(),
            destination: syn.destination.into(),
            port: syn.port,
            uid: 0,
            gid: 0,
        };
        let outcome = table.judge("PREROUTING", &packet);
        same(&lines, &decision, outcome, &packet);
    }
}

/// The decision did what the rules did, by the same line.
fn same(lines: &[Line], decision: &Decision, outcome: Outcome<'_>, packet: &Packet<'_>) {
    let port = match (decision.verdict, decision.rule) {
        // The kernel never asks the rules about these; the decision does not ask either unless it
        // would redirect.
        (_, Rule::NoRoute | Rule::LoopbackSource | Rule::BoundDevice) => {
            assert!(outcome.port.is_some(), "{decision:?} of {packet:?}");
            return;
        }
        (Verdict::Untouched, _) => None,
        (Verdict::Redirect { port, .. }, _) => Some(port),
        (Verdict::Fail { .. }, _) => panic!("{decision:?} of {packet:?}"),
    };
    // As `rules::line_of` finds it.
    let wanted = Some((decision.rule, decision.index));
    let line = lines.iter().find(|line| line.decision == wanted);
    let line = line.map(Line::command);
    let mut by = line.as_deref();
    // A decision does not tell which of several excluded devices it was.
    if matches!(decision.rule, Rule::InInterface | Rule::OutInterface) {
        assert!(by.is_some(), "{decision:?} of {packet:?}");
        by = outcome.by;
    }
    assert_eq!(Outcome { port, by }, outcome, "{decision:?} of {packet:?}");
}

/// What can stand in a connection.
struct Pools {
    own: Vec<Addr>,
    strangers: Vec<Addr>,
    sources: Vec<Addr>,
    destinations: Vec<Addr>,
    ports: Vec<u16>,
    uids: Vec<u32>,
    gids: Vec<u32>,
    devices: Vec<String>,
}

impl Pools {
    fn new(policy: &Policy, own: &[IpAddr], family: Family) -> Self {
        let addresses = |ips: &[IpAddr]| -> Vec<Addr> {
            let all = ips.iter().copied().map(Addr::from);
            all.filter(|addr| addr.family() == family).collect()
        };
        let own = addresses(own);
        let strangers = addresses(&[
            Ipv4Addr::new(192, 0, 2, 9).into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9).into(),
        ]);
        let lo = addresses(&[
            Ipv4Addr::LOCALHOST.into(),
            Ipv4Addr::new(127, 0, 0, 2).into(),
            Ipv4Addr::new(127, 0, 0, 6).into(),
            Ipv6Addr::LOCALHOST.into(),
            Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into(),
        ]);
        let nowhere = addresses(&[
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::BROADCAST.into(),
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into(),
        ]);
        let included: &[IpNet] = match &policy.outbound {
            OutboundRanges::All => &[],
            OutboundRanges::Only(ranges) => ranges,
        };
        let ranges = policy.excluded_ranges.iter().chain(included);
        let edges: Vec<IpAddr> = ranges
            .flat_map(|range| [range.addr(), range.network(), range.broadcast()])
            .collect();
        let mut ports = vec![
            22,
            80,
            policy.tunnel_port,
            policy.inbound_port,
            policy.outbound_port,
        ];
        ports.extend(&policy.excluded_outbound_ports);
        ports.extend(&policy.included_outbound_ports);
        ports.extend(super::policy::inbound_ports(policy));
        let mut gids = vec![0, 1000];
        gids.extend(&policy.proxy_gids);
        gids.extend(policy.included_groups.iter().flatten());
        gids.extend(&policy.excluded_groups);
        let mut devices = vec![DEVICE.to_owned()];
        devices.extend_from_slice(&policy.excluded_interfaces);
        Self {
            sources: [&*own, &lo, &[Addr::UNSPECIFIED; 6]].concat(),
            destinations: [&*addresses(&edges), &own, &strangers, &lo, &nowhere].concat(),
            own,
            strangers,
            ports,
            uids: [&[0, 1000], &*policy.proxy_uids].concat(),
            gids,
            devices,
        }
    }

    fn outbound(&self, pick: &mut Pick) -> Outbound {
        Outbound {
            owner: Owner {
                uid: *pick.of(&self.uids),
                gid: *pick.of(&self.gids),
            },
            source: *pick.of(&self.sources),
            destination: *pick.of(&self.destinations),
            port: *pick.of(&self.ports),
            bound_device: u32::from(pick.number().is_multiple_of(16)),
            captured_family: true,
        }
    }
}

/// The pod's addresses, at least one of each family.
fn own_addresses(own: &[IpAddr]) -> Vec<IpAddr> {
    let usable = |ip: &&IpAddr| !ip.is_unspecified() && !ip.is_multicast();
    let mut own: Vec<IpAddr> = own.iter().filter(usable).copied().collect();
    own.push(Ipv4Addr::new(10, 244, 1, 7).into());
    own.push(Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 7).into());
    own
}

/// The routes of a pod with lo and one other device, and what the policy says of those.
struct LabRoutes<'a> {
    known: KnownRoutes,
    policy: &'a Policy,
}

impl Routes for &LabRoutes<'_> {
    fn route(&self, addr: Addr) -> Route {
        let mut route = self.known.route(addr);
        let device = if route.is_local() { "lo" } else { DEVICE };
        let excluded = &self.policy.excluded_interfaces;
        if excluded.iter().any(|name| name == device) {
            route.flags |= ROUTE_DEVICE_EXCLUDED;
        }
        route
    }
}

/// Choices that are always the same for the same policy, so that a failure repeats.
struct Pick(u64);

impl Pick {
    fn new(policy: &Policy) -> Self {
        let mut hasher = DefaultHasher::new();
        policy.compile().hash(&mut hasher);
        Self(hasher.finish() | 1)
    }

    /// xorshift64.
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn of<'a, T>(&mut self, pool: &'a [T]) -> &'a T {
        &pool[(self.number() >> 16) as usize % pool.len()]
    }
}
