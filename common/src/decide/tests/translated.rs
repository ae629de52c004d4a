//! Connections of the proxy whose destination another program has translated.

use super::{ANY, APP, Fixture, LO2, Outbound, Owner, POD, PROXY, SECOND, VIP, default_policy};
use crate::{
    addr::Addr,
    decide::{Verdict, inbound_port_of, outbound, translated},
    policy::{
        DIALECT_LOCAL_CAPTURED, DIALECT_SELF_EXEMPT, DIALECT_TUNNEL_OUT, List, NO_ID, Policy,
    },
};

fn reaches_inbound_port(policy: &Policy, source: Addr, destination: Addr, port: u16) -> bool {
    translated(policy, source, destination, port, &Fixture::default())
}

#[test]
fn to_the_pod_itself() {
    let policy = default_policy();
    for own in [POD, SECOND, LO2] {
        assert!(reaches_inbound_port(&policy, POD, own, 80), "{own}");
    }
    assert!(!reaches_inbound_port(&policy, ANY, Addr::LOOPBACK_V4, 80));
    assert!(!reaches_inbound_port(&policy, POD, VIP, 80));
}

#[test]
fn exempt_by_dialect() {
    let policy = default_policy();
    let without = |bit: u8| Policy {
        dialect: policy.dialect & !bit,
        ..policy
    };
    let tunnel = policy.tunnel_port;
    assert!(!reaches_inbound_port(&policy, POD, POD, tunnel));
    assert!(reaches_inbound_port(
        &without(DIALECT_TUNNEL_OUT),
        POD,
        POD,
        tunnel
    ));
    for own in [Addr::SELF_V4, Addr::SELF_V6] {
        assert!(!reaches_inbound_port(&policy, own, POD, 80));
        assert!(reaches_inbound_port(
            &without(DIALECT_SELF_EXEMPT),
            own,
            POD,
            80
        ));
    }
}

/// What the rules decide about a connection to the translated address.
fn by_rules(policy: &Policy, owner: Owner, port: u16, tables: &Fixture) -> bool {
    let conn = Outbound {
        owner,
        source: ANY,
        destination: POD,
        port,
        mark: 0,
        routing_header: false,
        captured_family: true,
    };
    let inbound = policy.inbound_port;
    let verdict = outbound(policy, &conn, tables).verdict;
    matches!(verdict, Verdict::Redirect { port, .. } if port == inbound)
}

/// iptables sees only the translated address, whatever the dialed one was. (Nothing is said here of dialects that capture
/// every connection to the pod.)
#[test]
fn as_the_rules_decide_about_the_translated_address() {
    const EXCLUDED: u16 = 8080;
    let mut tables = Fixture::default();
    tables
        .ports
        .insert((List::OutPortExcluded as u16, EXCLUDED), 0);
    tables.owners.insert((List::MoreProxyUids as u16, 1338), 1);
    tables.owners.insert((List::MoreProxyGids as u16, 1338), 1);
    let ids = [APP.uid, PROXY.uid, 1338];
    let mut captured = 0;
    for dialect in (0..=u8::MAX).filter(|bits| bits & DIALECT_LOCAL_CAPTURED == 0) {
        for (loopback_included, has_uid, is_excluded) in
            (0..8).map(|bits| (bits & 1, bits & 2 != 0, bits & 4 != 0))
        {
            let lists = [
                List::OutPortExcluded,
                List::MoreProxyUids,
                List::MoreProxyGids,
            ];
            let policy = Policy {
                dialect,
                loopback_included,
                proxy_uid: if has_uid { PROXY.uid } else { NO_ID },
                lists: lists.iter().fold(0, |bits, list| bits | list.bit()),
                ..default_policy()
            };
            tables.local_excluded = is_excluded;
            for (uid, gid) in ids.iter().flat_map(|uid| ids.map(|gid| (*uid, gid))) {
                let owner = Owner { uid, gid };
                for port in [80, EXCLUDED, policy.tunnel_port] {
                    let expected = by_rules(&policy, owner, port, &tables);
                    let is_proxy = inbound_port_of(&policy, owner, &tables) != 0;
                    let found = is_proxy && translated(&policy, POD, POD, port, &tables);
                    assert_eq!(found, expected, "{owner:?} port {port} {policy:?}");
                    captured += u32::from(found);
                }
            }
        }
    }
    assert!(captured > 1000, "{captured}");
}
