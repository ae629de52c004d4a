use std::collections::BTreeMap;

use bytemuck::Zeroable as _;
use sidetrack_common::{event::Event, rule::Rule};

use super::{LastRefusals, cure};
use crate::observe::events::Clocks;
use sidetrack_datapath::kernel::events::boot_time;

#[test]
fn the_latest_come_first_and_the_unknown_last() {
    let now = boot_time();
    let event = |rule: Rule, seconds: u64| {
        let event = Event {
            at: now - seconds * 1_000_000_000,
            rule: rule as u32,
            errno: 111,
            ..Event::zeroed()
        };
        ((7, rule as u32), event)
    };
    let last = LastRefusals {
        by_pod_and_rule: [event(Rule::NoRoute, 5), event(Rule::SidecarRefused, 2)].into(),
        clocks: Clocks::now(),
    };
    let counts = BTreeMap::from([
        (Rule::NoRoute as u32, 1),
        (Rule::NoListener as u32, 9),
        (Rule::SidecarRefused as u32, 3),
    ]);
    let all = last.of(7, &counts, "a/b");
    let shown: Vec<_> = all
        .iter()
        .map(|refusals| {
            (
                refusals.reason.as_str(),
                refusals.count,
                refusals.seconds_ago,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("sidecar-refused", 3, Some(2)),
            ("no-route", 1, Some(5)),
            ("no-listener", 9, None)
        ]
    );
    assert!(last.of(8, &BTreeMap::new(), "a/c").is_empty());
}

#[test]
fn every_refusal_has_its_own_cure() {
    let mut refusals = Rule::ALL.to_vec();
    refusals.retain(|rule| rule.class().is_refusal());
    let of = |rule| match rule {
        Rule::SidecarRefused | Rule::NoListener => "runs and is ready",
        Rule::SidecarSilent => "does not accept connections: look at its load",
        Rule::HandshakesFull => "as fast as they come",
        Rule::NoRoute => "ip route get ADDRESS",
        Rule::NoPolicy => "restart the agent",
        Rule::NoStorage => "memory pressure",
        Rule::RecordsFull => "sockets that it does not close",
        Rule::BoundDevice => "CAP_NET_RAW",
        Rule::LoopbackSource => "or to the pod's",
        Rule::TooManyAddresses => "remove addresses",
        Rule::RoutingHeader => "IPV6_RTHDR",
        Rule::SocketOption => "on a connected socket",
        Rule::UnknownTarget => "another program has changed",
        _ => "a rule that this test does not know",
    };
    for rule in refusals {
        assert!(cure(rule).contains(of(rule)), "{}", rule.name());
    }
}
