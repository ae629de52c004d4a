use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use bytemuck::Zeroable as _;
use sidetrack_common::{event::Event, rule::Rule};

use super::{LastRefusals, NewRefusals, cure};
use crate::observe::events::Clocks;
use sidetrack_datapath::kernel::events::boot_time;

#[test]
fn the_latest_come_first_and_the_unknown_last() {
    let now = boot_time();
    let event = |rule: Rule, millis: u64| {
        let event = Event {
            at: now - millis * 1_000_000,
            rule: rule as u32,
            errno: 111,
            ..Event::zeroed()
        };
        ((7, rule as u32), event)
    };
    let last = LastRefusals {
        by_pod_and_rule: [
            event(Rule::NoRoute, 5_600),
            event(Rule::SidecarRefused, 5_200),
            event(Rule::HandshakesFull, 5_800),
        ]
        .into(),
        clocks: Clocks::now(),
    };
    let counts = BTreeMap::from([
        (Rule::NoRoute as u32, 1),
        (Rule::NoListener as u32, 9),
        (Rule::SidecarRefused as u32, 3),
        (Rule::HandshakesFull as u32, 2),
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
            ("sidecar-refused", 3, Some(5)),
            ("no-route", 1, Some(5)),
            ("handshakes-full", 2, Some(5)),
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
        Rule::LinkLocal => "fe80::/10",
        Rule::RoutingHeader => "IPV6_RTHDR",
        Rule::SocketOption => "on a connected socket",
        Rule::UnknownTarget => "another program has changed",
        _ => "a rule that this test does not know",
    };
    for rule in refusals {
        assert!(cure(rule).contains(of(rule)), "{}", rule.name());
    }
}

#[test]
fn what_is_new_does_not_depend_on_a_clock_that_is_set() {
    let before = boot_time();
    let hour = Duration::from_secs(3_600);
    // As earlier agents wrote the time of their last entry: an hour ago, and, by a clock that was wrong, in an hour.
    let since = |time| NewRefusals::since(time).since;
    let an_hour_ago = since(SystemTime::now() - hour);
    let expected = before.saturating_sub(u64::try_from(hour.as_nanos()).unwrap());
    assert!(an_hour_ago.abs_diff(expected) < 1_000_000_000);
    assert!(since(SystemTime::now() + hour).abs_diff(before) < 1_000_000_000);
}
