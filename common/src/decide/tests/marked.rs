//! A proxy that is known by the marks of its sockets.

use super::{
    ANY, APP, Addr, Decision, Fixture, List, Outbound, POD, Policy, Rule, VIP, Verdict,
    default_policy, dial, outbound, port_of, v6,
};
use crate::{
    decide::udp,
    dns::{DNS_PORT, DnsBlock, DnsPosition, DnsTcp},
    policy::{
        DIALECT_LO_UNTOUCHED, DIALECT_NO_LOCAL_RULES, DIALECT_TUNNEL_IN, NO_ID, PROXY_MARK_BITS,
    },
};

const MARK: u32 = 0x539;
const ROUTE_MARK: u32 = 0x111;
const CLIENT: Addr = Addr::v4([10, 9, 9, 9]);
const LISTED: Addr = Addr::v4([127, 0, 0, 53]);

fn policy() -> Policy {
    Policy {
        dialect: DIALECT_NO_LOCAL_RULES | DIALECT_LO_UNTOUCHED | DIALECT_TUNNEL_IN,
        lists: List::ProxyMark.bit() | List::Dns.bit() | List::DnsServer.bit(),
        proxy_uid: NO_ID,
        proxy_gid: NO_ID,
        transparent_mark: ROUTE_MARK,
        ..default_policy()
    }
}

fn tables() -> Fixture {
    let block = DnsBlock::new(15053, DnsPosition::First, DnsTcp::Captured).with_udp();
    let servers = [VIP, POD, LISTED, Addr::LOOPBACK_V4, v6(53)];
    Fixture {
        owners: [((List::ProxyMark as u16, MARK), 0)].into(),
        ports: [((List::Dns as u16, DNS_PORT), block.to_bits())].into(),
        ranges: servers.map(|server| (List::DnsServer, server)).to_vec(),
        ..Fixture::default()
    }
}

fn with_mark(mark: u32, source: Addr, destination: Addr, port: u16) -> Outbound {
    Outbound {
        mark,
        ..dial(APP, source, destination, port)
    }
}

fn decide(conn: &Outbound) -> Decision {
    outbound(&policy(), conn, &tables())
}

#[test]
fn its_sockets_are_not_redirected_whatever_they_dial() {
    for mark in [MARK, MARK | !PROXY_MARK_BITS] {
        for (destination, port) in [
            (VIP, 80),
            (VIP, DNS_PORT),
            (POD, 80),
            (POD, DNS_PORT),
            (Addr::LOOPBACK_V4, 80),
            (v6(9), 80),
        ] {
            let conn = with_mark(mark, ANY, destination, port);
            // What stays in the pod changes its mark: the app's socket gets it.
            let stays = [POD, Addr::LOOPBACK_V4].contains(&destination);
            let tcp = match stays {
                true => Verdict::Mark,
                false => Verdict::Untouched,
            };
            for (decision, verdict) in [
                (decide(&conn), tcp),
                (udp(&policy(), &conn, &tables()), Verdict::Untouched),
            ] {
                let is_other_udp = decision.rule == Rule::Udp && port != DNS_PORT;
                let is_wanted = (decision.verdict, decision.rule) == (verdict, Rule::ProxyMark);
                assert!(is_wanted || is_other_udp, "{mark:#x} {conn:?}");
            }
        }
    }
}

#[test]
fn other_marks_and_no_mark_are_the_application_s() {
    for mark in [0, MARK + 1, MARK & !1, MARK << 12] {
        let conn = with_mark(mark, ANY, VIP, 80);
        let decision = decide(&conn);
        let found = (port_of(decision), decision.rule);
        assert_eq!(found, (15001, Rule::AllOutbound), "{mark:#x}");
    }
}

#[test]
fn without_the_list_a_mark_means_nothing() {
    let mut policy = policy();
    policy.lists = 0;
    let decision = outbound(&policy, &with_mark(MARK, ANY, VIP, 80), &tables());
    assert_eq!(decision.rule, Rule::AllOutbound);
    let query = with_mark(MARK, ANY, VIP, DNS_PORT);
    assert_eq!(udp(&policy, &query, &tables()).rule, Rule::Udp);
}

#[test]
fn for_a_client_it_calls_the_app_by_lo() {
    for (source, destination) in [(CLIENT, POD), (CLIENT, Addr::LOOPBACK_V4), (v6(99), v6(2))] {
        let decision = decide(&with_mark(MARK, source, destination, 80));
        let found = (decision.verdict, decision.rule);
        assert_eq!(found, (Verdict::BindToLoopback, Rule::Transparent));
    }
    for (source, destination) in [(ANY, POD), (POD, POD), (CLIENT, VIP), (v6(2), v6(2))] {
        let decision = decide(&with_mark(MARK, source, destination, 80));
        assert_eq!(decision.rule, Rule::ProxyMark, "{source:?} {destination:?}");
    }
}

#[test]
fn for_a_client_only_where_answers_find_it() {
    let conn = with_mark(MARK, CLIENT, POD, 80);
    let without_route = Policy {
        transparent_mark: 0,
        ..policy()
    };
    let other_family = Outbound {
        captured_family: false,
        ..conn
    };
    let by_header = Outbound {
        routing_header: true,
        ..conn
    };
    let decisions = [
        outbound(&without_route, &conn, &tables()),
        decide(&other_family),
        decide(&by_header),
    ];
    for decision in decisions {
        let found = (decision.verdict, decision.rule);
        assert_eq!(found, (Verdict::Untouched, Rule::ProxyMark));
    }
}

#[test]
fn queries_of_the_application() {
    // Destination, and the ports that its queries over TCP and UDP go to.
    for (server, tcp, over_udp) in [
        (VIP, 15053, 15053),
        (v6(53), 15053, 15053),
        (POD, 15053, 0),
        (LISTED, 15053, 0),
        (Addr::LOOPBACK_V4, 0, 0),
    ] {
        let query = dial(APP, ANY, server, DNS_PORT);
        let found = [decide(&query), udp(&policy(), &query, &tables())];
        assert_eq!(found.map(port_of), [tcp, over_udp], "{server:?}");
    }
}

#[test]
fn over_lo_nothing_else_is_captured() {
    for destination in [POD, LISTED, Addr::LOOPBACK_V4, Addr::LOOPBACK_V6, v6(2)] {
        let decision = decide(&dial(APP, ANY, destination, 80));
        assert_eq!(decision.rule, Rule::OverLo, "{destination:?}");
    }
}
