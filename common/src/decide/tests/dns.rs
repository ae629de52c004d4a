//! DNS capture, rule 7.

use super::{ANY, APP, Fixture, LO2, POD, PROXY, SECOND, VIP, default_policy, dial, v6};
use crate::{
    addr::Addr,
    decide::{Decision, Outbound, Owner, Verdict, outbound, udp},
    dns::{DNS_PORT, DnsBlock, DnsPosition, DnsTcp},
    policy::{DIALECT_DNS_PASSES_LOCAL, List, Policy},
    rule::Rule,
};

const SERVER: Addr = Addr::v4([10, 96, 0, 10]);
const LOCAL_SERVER: Addr = Addr::v4([127, 0, 0, 53]);
const BY_GROUP: Owner = Owner {
    uid: 1000,
    gid: 1337,
};

/// As current Istio has it.
const CURRENT: DnsBlock = DnsBlock::new(15053, DnsPosition::AfterOwners, DnsTcp::Captured)
    .with_udp()
    .with_udp_exclusions();

fn capturing(block: DnsBlock) -> (Policy, Fixture) {
    let mut policy = default_policy();
    policy.lists |= List::Dns.bit() | List::DnsServer.bit();
    if block == CURRENT {
        policy.dialect |= DIALECT_DNS_PASSES_LOCAL;
    }
    let servers = [SERVER, LOCAL_SERVER, v6(53)];
    let tables = Fixture {
        ports: [((List::Dns as u16, DNS_PORT), block.to_bits())].into(),
        ranges: servers.map(|server| (List::DnsServer, server)).to_vec(),
        ..Fixture::default()
    };
    (policy, tables)
}

/// Rule, capture port and position of both decisions about a query.
fn both(
    owner: Owner,
    server: Addr,
    change: impl Fn(&mut Policy, &mut Fixture),
) -> [(Rule, u16, u32); 2] {
    let (mut policy, mut tables) = capturing(CURRENT);
    change(&mut policy, &mut tables);
    let query = dial(owner, ANY, server, DNS_PORT);
    [
        outbound(&policy, &query, &tables),
        udp(&policy, &query, &tables),
    ]
    .map(outcome)
}

fn outcome(decision: Decision) -> (Rule, u16, u32) {
    let port = match decision.verdict {
        Verdict::Redirect { port, .. } => port,
        _ => 0,
    };
    (decision.rule, port, decision.index)
}

#[test]
fn queries_to_listed_servers_go_to_the_dns_port() {
    for (server, index) in [(SERVER, 0), (LOCAL_SERVER, 1), (v6(53), 2)] {
        let expected = [(Rule::DnsTcp, 15053, index), (Rule::DnsUdp, 15053, index)];
        assert_eq!(both(APP, server, |_, _| {}), expected, "{server}");
    }
}

#[test]
fn a_query_has_the_source_that_it_would_have() {
    let (policy, mut tables) = capturing(CURRENT);
    tables.group_route = true;
    for (bound, expected) in [(ANY, POD), (SECOND, SECOND)] {
        let query = dial(APP, bound, SERVER, DNS_PORT);
        let Verdict::Redirect { source, dialed, .. } = udp(&policy, &query, &tables).verdict else {
            panic!("it is captured");
        };
        assert_eq!((source, dialed), (expected, SERVER));
    }
}

#[test]
fn other_servers_and_owners_follow_the_other_rules() {
    let plain = |owner, server| both(owner, server, |_, _| {}).map(|(rule, port, _)| (rule, port));
    assert_eq!(
        plain(APP, VIP),
        [(Rule::AllOutbound, 15001), (Rule::Udp, 0)]
    );
    // An own address that is no server: rule 4b leaves only other ports untouched.
    assert_eq!(
        plain(APP, POD),
        [(Rule::AllOutbound, 15001), (Rule::Udp, 0)]
    );
    assert_eq!(
        plain(APP, LO2),
        [(Rule::AllOutbound, 15001), (Rule::Udp, 0)]
    );
    assert_eq!(
        plain(APP, Addr::LOOPBACK_V4),
        [(Rule::Loopback, 0), (Rule::Udp, 0)]
    );
    for server in [SERVER, POD, LOCAL_SERVER] {
        assert_eq!(
            plain(PROXY, server),
            [(Rule::ProxyUid, 0), (Rule::ProxyUid, 0)]
        );
    }
    assert_eq!(
        plain(BY_GROUP, POD),
        [(Rule::ProxyGidLocal, 15006), (Rule::ProxyGid, 0)]
    );
    assert_eq!(
        plain(BY_GROUP, SERVER),
        [(Rule::ProxyGid, 0), (Rule::ProxyGid, 0)]
    );
}

#[test]
fn other_ports_are_not_concerned() {
    let (policy, tables) = capturing(CURRENT);
    let query = dial(APP, ANY, SERVER, 5353);
    assert_eq!(outbound(&policy, &query, &tables).rule, Rule::AllOutbound);
    assert_eq!(udp(&policy, &query, &tables).rule, Rule::Udp);
    let local = dial(APP, ANY, POD, 80);
    assert_eq!(
        outbound(&policy, &local, &tables).rule,
        Rule::NotProxyUidLocal
    );
}

#[test]
fn later_owners_count_for_port_53_of_the_own_pod() {
    let second = Owner { uid: 2000, gid: 1 };
    let found = both(second, POD, |policy, tables| {
        policy.lists |= List::MoreProxyUids.bit();
        tables.owners.insert((List::MoreProxyUids as u16, 2000), 1);
    });
    assert_eq!(found, [(Rule::ProxyUid, 0, 1), (Rule::ProxyUid, 0, 1)]);
}

#[test]
fn exclusions_and_groups_come_first() {
    let found = both(APP, SERVER, |policy, tables| {
        policy.lists |= List::OutPortExcluded.bit();
        tables
            .ports
            .insert((List::OutPortExcluded as u16, DNS_PORT), 3);
    });
    assert_eq!(found, [(Rule::OutPortExcluded, 0, 3); 2]);
    let found = both(APP, SERVER, |policy, tables| {
        policy.lists |= List::GroupExcluded.bit();
        tables.owners.insert((List::GroupExcluded as u16, 1000), 2);
    });
    assert_eq!(found, [(Rule::GroupExcluded, 0, 2); 2]);
    let found = both(APP, SERVER, |_, tables| tables.device_excluded = true);
    assert_eq!(found, [(Rule::OutInterface, 0, 0); 2]);
}

#[test]
fn the_kernels_errors_come_first() {
    let found = both(APP, SERVER, |_, tables| tables.no_default_route = true);
    assert_eq!(found, [(Rule::NoRoute, 0, 0); 2]);
    let found = both(APP, SERVER, |_, tables| tables.unknown = true);
    assert_eq!(found, [(Rule::TooManyAddresses, 0, 0); 2]);
    let found = both(APP, SERVER, |_, tables| tables.before_sidecar = true);
    assert_eq!(found, [(Rule::BeforeSidecar, 0, 0); 2]);
    // What cannot be looked up is refused.
    let found = both(APP, SERVER, |_, tables| tables.ports.clear());
    assert_eq!(found, [(Rule::NoPolicy, 0, 0); 2]);
}

#[test]
fn istio_1_8_sends_tcp_there_instead_of_to_the_outbound_port() {
    let block =
        DnsBlock::new(15053, DnsPosition::AfterOwners, DnsTcp::InsteadOfOutbound).with_udp();
    let (policy, tables) = capturing(block);
    let query = |owner, server| outbound(&policy, &dial(owner, ANY, server, DNS_PORT), &tables);
    assert_eq!(outcome(query(APP, SERVER)), (Rule::AllOutbound, 15053, 0));
    assert_eq!(outcome(query(APP, VIP)), (Rule::AllOutbound, 15001, 0));
    assert_eq!(query(APP, LOCAL_SERVER).rule, Rule::NotProxyUidLocal);
    assert_eq!(outcome(query(PROXY, POD)), (Rule::ProxyUidLocal, 15006, 0));
    let to_self = udp(&policy, &dial(APP, ANY, LOCAL_SERVER, DNS_PORT), &tables);
    assert_eq!(outcome(to_self), (Rule::DnsUdp, 15053, 1));
}

#[test]
fn the_rules_can_stand_before_all_others() {
    // Consul: every user's queries to one address, the proxy's included.
    let first = DnsBlock::new(8600, DnsPosition::First, DnsTcp::Captured).with_udp();
    let (policy, tables) = capturing(first);
    let query = dial(PROXY, ANY, LOCAL_SERVER, DNS_PORT);
    assert_eq!(
        outcome(outbound(&policy, &query, &tables)),
        (Rule::DnsTcp, 8600, 1)
    );
    assert_eq!(
        outcome(udp(&policy, &query, &tables)),
        (Rule::DnsUdp, 8600, 1)
    );
    // Kuma: the exclusions of TCP ports do not count for UDP.
    let exempt = DnsBlock::new(15053, DnsPosition::AfterOwners, DnsTcp::Ordinary).with_udp();
    let (mut policy, mut tables) = capturing(exempt);
    policy.lists |= List::OutPortExcluded.bit();
    tables
        .ports
        .insert((List::OutPortExcluded as u16, DNS_PORT), 0);
    let query = dial(APP, ANY, SERVER, DNS_PORT);
    assert_eq!(
        outbound(&policy, &query, &tables).rule,
        Rule::OutPortExcluded
    );
    assert_eq!(
        outcome(udp(&policy, &query, &tables)),
        (Rule::DnsUdp, 15053, 0)
    );
}

#[test]
fn a_family_without_rules_is_untouched() {
    let (policy, tables) = capturing(CURRENT);
    let query = Outbound {
        captured_family: false,
        ..dial(APP, ANY, v6(53), DNS_PORT)
    };
    assert_eq!(udp(&policy, &query, &tables).rule, Rule::FamilyNotCaptured);
    assert_eq!(
        outbound(&policy, &query, &tables).rule,
        Rule::FamilyNotCaptured
    );
}

#[test]
fn the_mode_tproxy_has_the_same_rules_for_dns() {
    let query = |owner| {
        let (mut policy, tables) = capturing(CURRENT);
        policy.transparent_mark = 1337;
        outcome(outbound(
            &policy,
            &dial(owner, ANY, SECOND, DNS_PORT),
            &tables,
        ))
    };
    // mangle's rules have no exception for port 53: nat passes over it, and mangle's mark leads it to the inbound port.
    assert_eq!(query(PROXY), (Rule::TransparentUidLocal, 0, 0));
    assert_eq!(query(BY_GROUP), (Rule::ProxyGidLocal, 15006, 0));
}
