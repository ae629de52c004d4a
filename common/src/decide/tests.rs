//! The two tables of docs/semantics.md, row by row, then each rule by itself.

use std::collections::HashMap;

use super::{Decision, Inbound, Outbound, Owner, Tables, Verdict, inbound, outbound};
use crate::{
    addr::{Addr, Family},
    pod::{IfaceRow, IfaceRule, Route, RouteKind},
    policy::{
        DIALECT_LOCAL_CAPTURED, DIALECT_SELF_EXEMPT, DIALECT_SSH_IN, DIALECT_TUNNEL_IN,
        DIALECT_TUNNEL_OUT, InboundMode, List, NO_ID, Policy,
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

/// A pod with two IPv4 addresses and fd00::2, a default route for both families, and whatever
/// lists a test adds.
#[derive(Default)]
struct Fixture {
    ports: HashMap<(u16, u16), u32>,
    ranges: Vec<(List, Addr)>,
    owners: HashMap<(u16, u32), u32>,
    device_excluded: bool,
    no_default_route: bool,
    before_sidecar: bool,
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
            flags: 0,
            ifindex: 1,
            source,
        };
        if addr.is_loopback() && addr.family() == Family::V4 {
            return local(Addr::LOOPBACK_V4);
        }
        if [POD, SECOND, v6(2), Addr::LOOPBACK_V6, Addr::SELF_V6]
            .iter()
            .any(|own| own.is(addr))
        {
            return local(addr);
        }
        if self.no_default_route {
            return Route::NONE;
        }
        Route {
            kind: RouteKind::Unicast as u32,
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
    }
}

fn dial(owner: Owner, source: Addr, destination: Addr, port: u16) -> Outbound {
    Outbound {
        owner,
        source,
        destination,
        port,
        bound_device: 0,
        captured_family: true,
    }
}

/// The capture port, or 0 for untouched.
fn port_of(decision: Decision) -> u16 {
    match decision.verdict {
        Verdict::Untouched => 0,
        Verdict::Redirect { port, .. } => port,
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

#[test]
fn app_to_off_pod() {
    expect(APP, ANY, VIP, 80, 15001, Rule::AllOutbound);
    expect(APP, POD, VIP, 80, 15001, Rule::AllOutbound);
    expect(APP, ANY, VIP, 15001, 15001, Rule::AllOutbound);
    expect(APP, ANY, v6(9), 80, 15001, Rule::AllOutbound);
}

#[test]
fn before_the_sidecar_only_what_leaves_by_its_port_goes_past() {
    let tables = Fixture {
        before_sidecar: true,
        ..Fixture::default()
    };
    let decide = |owner, destination, port| {
        let conn = dial(owner, ANY, destination, port);
        let decision = outbound(&default_policy(), &conn, &tables);
        (port_of(decision), decision.rule)
    };
    assert_eq!(decide(APP, VIP, 80), (0, Rule::BeforeSidecar));
    // What the gate tries stays redirected, or it would let nobody through.
    assert_eq!(decide(PROXY, LO2, 80), (15006, Rule::ProxyUidLocal));
    assert_eq!(decide(PROXY, VIP, 80), (0, Rule::ProxyUid));
    let broadcast = Addr::v4([255, 255, 255, 255]);
    assert_eq!(decide(APP, broadcast, 80), (u16::MAX, Rule::NoRoute));
}

#[test]
fn app_to_its_own_pod() {
    for destination in [
        Addr::LOOPBACK_V4,
        LO2,
        Addr::SELF_V4,
        ANY_V4,
        ANY,
        Addr::LOOPBACK_V6,
        POD,
        SECOND,
        v6(2),
    ] {
        expect(APP, ANY, destination, 80, 0, Rule::NotProxyUidLocal);
    }
}

#[test]
fn app_bound_to_loopback() {
    expect(APP, Addr::LOOPBACK_V4, POD, 80, 0, Rule::NotProxyUidLocal);
    expect(APP, Addr::SELF_V4, POD, 80, 0, Rule::SelfSource);
    expect(APP, Addr::LOOPBACK_V4, VIP, 80, 0, Rule::LoopbackSource);
    expect(APP, Addr::SELF_V4, VIP, 80, 0, Rule::LoopbackSource);
    // IPv6 differs: the kernel does not reject the source, and the rules redirect.
    expect(APP, Addr::LOOPBACK_V6, v6(9), 80, 15001, Rule::AllOutbound);
    expect(APP, Addr::SELF_V6, v6(9), 80, 15001, Rule::AllOutbound);
}

#[test]
fn proxy_off_pod_and_loopback() {
    expect(PROXY, ANY, VIP, 80, 0, Rule::ProxyUid);
    expect(PROXY, ANY, Addr::LOOPBACK_V4, 80, 0, Rule::ProxyUid);
    expect(PROXY, ANY, Addr::LOOPBACK_V6, 80, 0, Rule::ProxyUid);
    expect(PROXY, ANY, ANY_V4, 80, 0, Rule::ProxyUid);
}

#[test]
fn proxy_to_its_own_pod() {
    for (destination, port) in [
        (LO2, 80),
        (POD, 80),
        (POD, 15021),
        (SECOND, 80),
        (v6(2), 80),
    ] {
        expect(PROXY, ANY, destination, port, 15006, Rule::ProxyUidLocal);
    }
    expect(PROXY, ANY, POD, 15008, 0, Rule::ProxyUid);
    expect(PROXY, Addr::SELF_V4, POD, 80, 0, Rule::SelfSource);
    expect(PROXY, Addr::SELF_V6, v6(2), 80, 0, Rule::SelfSource);
    // Istio's validation container does exactly this.
    expect(
        PROXY,
        Addr::LOOPBACK_V4,
        Addr::SELF_V4,
        15002,
        15006,
        Rule::ProxyUidLocal,
    );
    // Unbound: IPv4 gets 127.0.0.1 as its source, IPv6 gets ::6 itself.
    expect(PROXY, ANY, Addr::SELF_V4, 80, 15006, Rule::ProxyUidLocal);
    expect(PROXY, ANY, Addr::SELF_V6, 80, 0, Rule::SelfSource);
}

#[test]
fn unspecified_means_the_bound_address_in_ipv4_only() {
    let own = outbound(
        &default_policy(),
        &dial(PROXY, POD, ANY_V4, 80),
        &Fixture::default(),
    );
    assert_eq!(
        own.verdict,
        Verdict::Redirect {
            port: 15006,
            source: POD,
            dialed: POD
        }
    );
    expect(PROXY, v6(2), ANY, 80, 0, Rule::ProxyUid);
}

#[test]
fn owner_by_group() {
    let gid_only = Owner {
        uid: 1000,
        gid: 1337,
    };
    expect(gid_only, ANY, VIP, 80, 0, Rule::ProxyGid);
    expect(gid_only, ANY, POD, 80, 0, Rule::NotProxyUidLocal);
    let policy = Policy {
        proxy_uid: NO_ID,
        ..default_policy()
    };
    let decide = |owner| outbound(&policy, &dial(owner, ANY, POD, 80), &Fixture::default());
    assert_eq!(decide(gid_only).rule, Rule::ProxyGidLocal);
    assert_eq!(decide(APP).rule, Rule::NotProxyGidLocal);
}

#[test]
fn sockets_without_an_owner_are_the_apps() {
    let kernel = Owner {
        uid: NO_ID,
        gid: NO_ID,
    };
    expect(kernel, ANY, VIP, 80, 15001, Rule::AllOutbound);
    let policy = Policy {
        proxy_uid: NO_ID,
        proxy_gid: NO_ID,
        ..default_policy()
    };
    let decision = outbound(&policy, &dial(kernel, ANY, VIP, 80), &Fixture::default());
    assert_eq!(decision.rule, Rule::AllOutbound);
}

#[test]
fn names_and_sources() {
    let decide = |owner, source, destination| {
        outbound(
            &default_policy(),
            &dial(owner, source, destination, 80),
            &Fixture::default(),
        )
        .verdict
    };
    let redirect = |port, source, dialed| Verdict::Redirect {
        port,
        source,
        dialed,
    };
    assert_eq!(decide(APP, ANY, VIP), redirect(15001, POD, VIP));
    assert_eq!(decide(APP, SECOND, VIP), redirect(15001, SECOND, VIP));
    assert_eq!(decide(APP, ANY, v6(9)), redirect(15001, v6(2), v6(9)));
    assert_eq!(decide(PROXY, ANY, SECOND), redirect(15006, SECOND, SECOND));
    assert_eq!(
        decide(PROXY, ANY, LO2),
        redirect(15006, Addr::LOOPBACK_V4, LO2)
    );
}

#[test]
fn errors_come_first() {
    const ENETUNREACH: i32 = 101;
    let fails = Verdict::Fail { errno: ENETUNREACH };
    let tables = Fixture {
        no_default_route: true,
        ..Fixture::default()
    };
    for destination in [VIP, v6(9)] {
        let decision = outbound(&default_policy(), &dial(APP, ANY, destination, 80), &tables);
        assert_eq!((decision.verdict, decision.rule), (fails, Rule::NoRoute));
        // What is not captured anyway is the kernel's business.
        let proxy = outbound(
            &default_policy(),
            &dial(PROXY, ANY, destination, 80),
            &tables,
        );
        assert_eq!(proxy.rule, Rule::ProxyUid);
    }
    for destination in [[224, 0, 0, 1], [239, 1, 2, 3], [255, 255, 255, 255]] {
        let decision = outbound(
            &default_policy(),
            &dial(APP, ANY, Addr::v4(destination), 80),
            &Fixture::default(),
        );
        assert_eq!((decision.verdict, decision.rule), (fails, Rule::NoRoute));
    }
}

#[test]
fn each_unusable_route_has_its_errno() {
    for (kind, errno) in [
        (RouteKind::None, 101),
        (RouteKind::Unreachable, 113),
        (RouteKind::Prohibit, 13),
        (RouteKind::Blackhole, 22),
    ] {
        let route = Route {
            kind: kind as u32,
            ..Route::NONE
        };
        assert_eq!(route.errno(), errno);
    }
}

#[test]
fn bound_device() {
    let mut conn = dial(APP, ANY, VIP, 80);
    conn.bound_device = 2;
    let decision = outbound(&default_policy(), &conn, &Fixture::default());
    assert_eq!(decision.rule, Rule::BoundDevice);
    assert_eq!(decision.verdict, Verdict::Untouched);
}

#[test]
fn uncaptured_family() {
    let mut conn = dial(APP, ANY, v6(9), 80);
    conn.captured_family = false;
    let decision = outbound(&default_policy(), &conn, &Fixture::default());
    assert_eq!(decision.rule, Rule::FamilyNotCaptured);
}

fn with(list: List, fixture: Fixture, change: impl FnOnce(&mut Policy)) -> (Policy, Fixture) {
    let mut policy = default_policy();
    policy.lists = list.bit();
    change(&mut policy);
    (policy, fixture)
}

#[test]
fn exclusions_in_order() {
    let fixture = Fixture {
        device_excluded: true,
        ..Fixture::default()
    };
    let decision = outbound(&default_policy(), &dial(APP, ANY, VIP, 80), &fixture);
    assert_eq!(decision.rule, Rule::OutInterface);

    let (policy, tables) = with(
        List::OutPortExcluded,
        Fixture {
            ports: [((List::OutPortExcluded as u16, 80), 3)].into(),
            ..Fixture::default()
        },
        |_| {},
    );
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!((decision.rule, decision.index), (Rule::OutPortExcluded, 3));
    // Before the owner rules: the proxy's calls to its own pod on that port are untouched too.
    let decision = outbound(&policy, &dial(PROXY, ANY, POD, 80), &tables);
    assert_eq!(decision.rule, Rule::OutPortExcluded);

    let (policy, tables) = with(
        List::RangeExcluded,
        Fixture {
            ranges: vec![(List::RangeExcluded, VIP)],
            ..Fixture::default()
        },
        |policy| policy.lists |= List::OutPortIncluded.bit(),
    );
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!(decision.rule, Rule::RangeExcluded);
}

#[test]
fn inclusions() {
    let (policy, tables) = with(
        List::OutPortIncluded,
        Fixture {
            ports: [((List::OutPortIncluded as u16, 443), 0)].into(),
            ..Fixture::default()
        },
        |policy| policy.outbound_all = 0,
    );
    let decide = |port| outbound(&policy, &dial(APP, ANY, VIP, port), &tables);
    assert_eq!(port_of(decide(443)), 15001);
    assert_eq!(decide(443).rule, Rule::OutPortIncluded);
    assert_eq!(decide(80).rule, Rule::OutNoMatch);

    let (policy, tables) = with(
        List::RangeIncluded,
        Fixture {
            ranges: vec![(List::RangeIncluded, VIP)],
            ..Fixture::default()
        },
        |policy| policy.outbound_all = 0,
    );
    let decide = |destination| outbound(&policy, &dial(APP, ANY, destination, 80), &tables);
    assert_eq!(decide(VIP).rule, Rule::RangeIncluded);
    assert_eq!(decide(Addr::v4([1, 1, 1, 1])).rule, Rule::OutNoMatch);
}

#[test]
fn owner_groups() {
    let (policy, tables) = with(
        List::GroupExcluded,
        Fixture {
            owners: [((List::GroupExcluded as u16, 1000), 0)].into(),
            ..Fixture::default()
        },
        |_| {},
    );
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!(decision.rule, Rule::GroupExcluded);

    let (policy, tables) = with(List::GroupIncluded, Fixture::default(), |_| {});
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!(decision.rule, Rule::GroupNotIncluded);
}

#[test]
fn further_proxy_owners_count_off_the_pod_only() {
    let tables = Fixture {
        owners: [
            ((List::MoreProxyUids as u16, 1338), 1),
            ((List::MoreProxyGids as u16, 1339), 1),
        ]
        .into(),
        ..Fixture::default()
    };
    let mut policy = default_policy();
    policy.lists = List::MoreProxyUids.bit() | List::MoreProxyGids.bit();
    let second = Owner {
        uid: 1338,
        gid: 1000,
    };
    let decision = outbound(&policy, &dial(second, ANY, VIP, 80), &tables);
    assert_eq!((decision.rule, decision.index), (Rule::ProxyUid, 1));
    let decision = outbound(&policy, &dial(second, ANY, POD, 80), &tables);
    assert_eq!(decision.rule, Rule::NotProxyUidLocal);
    let by_group = Owner {
        uid: 1000,
        gid: 1339,
    };
    let decision = outbound(&policy, &dial(by_group, ANY, VIP, 80), &tables);
    assert_eq!((decision.rule, decision.index), (Rule::ProxyGid, 1));
}

#[test]
fn a_loopback_range_among_the_included_lifts_rule_4b() {
    let tables = Fixture {
        ranges: vec![(List::RangeIncluded, LO2)],
        ..Fixture::default()
    };
    let mut policy = default_policy();
    policy.loopback_included = 1;
    policy.outbound_all = 0;
    policy.lists = List::RangeIncluded.bit();
    let decide =
        |owner, destination| outbound(&policy, &dial(owner, ANY, destination, 80), &tables).rule;
    assert_eq!(decide(APP, LO2), Rule::RangeIncluded);
    assert_eq!(decide(APP, POD), Rule::OutNoMatch);
    assert_eq!(decide(APP, Addr::LOOPBACK_V4), Rule::Loopback);
    assert_eq!(decide(PROXY, POD), Rule::ProxyUidLocal);
}

#[test]
fn a_wider_loopback_range() {
    let mut policy = default_policy();
    policy.loopback_v4 = [127, 0, 0, 0];
    policy.loopback_v4_prefix = 8;
    let decision = outbound(&policy, &dial(PROXY, ANY, LO2, 80), &Fixture::default());
    assert_eq!(decision.rule, Rule::ProxyUid);
    let decision = outbound(&policy, &dial(PROXY, ANY, POD, 80), &Fixture::default());
    assert_eq!(decision.rule, Rule::ProxyUidLocal);
}

fn arrive(source: Addr, port: u16) -> Inbound {
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

#[test]
fn inbound_table() {
    let (policy, tables) = with_exempt_ports();
    let decide = |port| inbound(&policy, &arrive(REMOTE, port), &tables);
    assert_eq!(decide(15008).rule, Rule::TunnelPort);
    for port in [15020, 15021, 15090] {
        assert_eq!(decide(port).rule, Rule::InPortExcluded);
        assert_eq!(decide(port).verdict, Verdict::Untouched);
    }
    for port in [22, 80, 9999, 15001, 15006] {
        assert_eq!(port_of(decide(port)), 15006);
        assert_eq!(decide(port).rule, Rule::AllInbound);
    }
}

#[test]
fn the_pods_own_traffic_is_not_inbound() {
    let (policy, tables) = with_exempt_ports();
    for source in [
        Addr::SELF_V4,
        Addr::LOOPBACK_V4,
        Addr::LOOPBACK_V6,
        Addr::SELF_V6,
        POD,
        SECOND,
        v6(2),
    ] {
        let decision = inbound(&policy, &arrive(source, 80), &tables);
        assert_eq!(decision.rule, Rule::LocalSource);
    }
}

#[test]
fn inbound_modes() {
    let (mut policy, tables) = with_exempt_ports();
    policy.inbound = InboundMode::Off as u8;
    let off = inbound(&policy, &arrive(REMOTE, 80), &tables);
    assert_eq!(off.rule, Rule::InboundOff);
    policy.inbound = InboundMode::Listed as u8;
    let listed = inbound(&policy, &arrive(REMOTE, 15090), &tables);
    assert_eq!(
        (port_of(listed), listed.rule),
        (15006, Rule::InPortIncluded)
    );
    let other = inbound(&policy, &arrive(REMOTE, 80), &tables);
    assert_eq!(other.rule, Rule::InNoMatch);
}

#[test]
fn inbound_interfaces() {
    let (mut policy, tables) = with_exempt_ports();
    let mut syn = arrive(REMOTE, 80);
    syn.iface = IfaceRow::new(IfaceRule::Excluded, 0);
    assert_eq!(inbound(&policy, &syn, &tables).rule, Rule::InInterface);
    syn.iface = IfaceRow::new(IfaceRule::Virtual, 0);
    let captured = inbound(&policy, &syn, &tables);
    assert_eq!(
        (port_of(captured), captured.rule),
        (15001, Rule::VirtualInterface)
    );
    policy.outbound_all = 0;
    assert_eq!(
        inbound(&policy, &syn, &tables).rule,
        Rule::VirtualInterfaceNoMatch
    );
    syn.captured_family = false;
    assert_eq!(
        inbound(&policy, &syn, &tables).rule,
        Rule::FamilyNotCaptured
    );
}

#[test]
fn istio_up_to_1_2_captures_everything_over_lo() {
    let mut policy = default_policy();
    policy.dialect = DIALECT_LOCAL_CAPTURED;
    policy.inbound_port = 15001;
    let decide = |owner, source, destination| {
        let decision = outbound(
            &policy,
            &dial(owner, source, destination, 80),
            &Fixture::default(),
        );
        (port_of(decision), decision.rule)
    };
    for owner in [APP, PROXY] {
        for destination in [POD, LO2, Addr::SELF_V4] {
            assert_eq!(
                decide(owner, ANY, destination),
                (15001, Rule::LocalCaptured)
            );
        }
    }
    assert_eq!(
        decide(PROXY, Addr::SELF_V4, POD),
        (15001, Rule::LocalCaptured)
    );
    assert_eq!(decide(APP, ANY, Addr::LOOPBACK_V4), (0, Rule::Loopback));
    assert_eq!(decide(PROXY, ANY, Addr::LOOPBACK_V4), (0, Rule::ProxyUid));
    assert_eq!(decide(PROXY, ANY, VIP), (0, Rule::ProxyUid));
    assert_eq!(decide(APP, ANY, VIP), (15001, Rule::AllOutbound));
}

#[test]
fn exempt_ports_by_dialect() {
    let (mut policy, tables) = with_exempt_ports();
    policy.dialect = DIALECT_SELF_EXEMPT | DIALECT_SSH_IN;
    let decide = |policy: &Policy, port| inbound(policy, &arrive(REMOTE, port), &tables).rule;
    assert_eq!(decide(&policy, 22), Rule::SshPort);
    assert_eq!(decide(&policy, 15008), Rule::AllInbound);
    let own = outbound(&policy, &dial(PROXY, ANY, POD, 15008), &tables);
    assert_eq!(own.rule, Rule::ProxyUidLocal);
    // Only with -b *.
    policy.inbound = InboundMode::Listed as u8;
    assert_eq!(decide(&policy, 22), Rule::InNoMatch);
}
