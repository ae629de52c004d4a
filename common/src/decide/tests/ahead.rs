//! Rules ahead of the others: their order, their positions, and which lists they ask.

use super::{super::ahead::Ahead, ANY, APP, Fixture, LO2, VIP, default_policy, dial, v6};
use crate::{
    addr::Addr,
    decide::{Tables, outbound},
    pod::Route,
    policy::{
        DIALECT_LO_UNTOUCHED, DIALECT_NO_LOCAL_RULES, DNS_DIRECT_BITS, List, OUTBOUND_OFF_BIT,
        OWNER_ENTRIES, Policy,
    },
    rule::Rule,
};

const USER: Addr = Addr::number(1000);
const PORT: Addr = Addr::number(80);
const ALL: u32 =
    List::OwnerExcluded.bit() | List::DestinationExcluded.bit() | List::OutPortRangeExcluded.bit();
const LAST_INDEX: u32 = 9_999;

/// Values of ranges, whatever the policy says that it has.
struct Ranges(Vec<(List, Addr, u32)>);

impl Tables for Ranges {
    fn port(&self, _: List, _: u16) -> Option<u32> {
        None
    }

    fn range(&self, list: List, addr: Addr) -> Option<u32> {
        let mut all = self.0.iter();
        let found = all.find(|(of, at, _)| *of == list && at.is(addr))?;
        Some(found.2)
    }

    fn owner(&self, _: List, _: u32) -> Option<u32> {
        None
    }

    fn before_sidecar(&self) -> bool {
        false
    }

    fn route(&self, _: Addr) -> Route {
        Route::NONE
    }
}

/// Rule and position of both decisions.
fn decided(lists: u32, to: Addr, ranges: &[(List, Addr, u32)]) -> [Option<(Rule, u32)>; 2] {
    let policy = Policy {
        lists,
        ..default_policy()
    };
    let conn = dial(APP, ANY, to, 80);
    let tables = Ranges(ranges.to_vec());
    let ahead = Ahead::of(&policy, &conn, to, &tables, List::OwnerTcpPort);
    [ahead.decision(), ahead.by_port()].map(|decision| decision.map(|it| (it.rule, it.index)))
}

/// A user's entries, and those of the port.
fn entries(of_user: u32, of_port: u32) -> [(List, Addr, u32); 2] {
    [
        (List::OwnerExcluded, USER, of_user),
        (List::OwnerTcpPort, PORT, of_port),
    ]
}

#[test]
fn the_first_entry_of_user_and_port_decides() {
    for entry in 0..OWNER_ENTRIES {
        let bit = 1 << entry;
        let owner = [Some((Rule::OwnerExcluded, entry)), None];
        assert_eq!(decided(ALL, VIP, &entries(bit, bit)), owner);
        // Entries of other ports and users, and all after this one.
        let later = !(bit - 1);
        assert_eq!(decided(ALL, VIP, &entries(later, u32::MAX)), owner);
        assert_eq!(decided(ALL, VIP, &entries(u32::MAX, later)), owner);
        let others = ((1 << OWNER_ENTRIES) - 1) & !bit;
        assert_eq!(decided(ALL, VIP, &entries(bit, others)), [None; 2]);
    }
    let of_udp = [
        (List::OwnerExcluded, USER, 1),
        (List::OwnerUdpPort, PORT, 1),
    ];
    assert_eq!(decided(ALL, VIP, &of_udp), [None; 2]);
}

#[test]
fn destinations_come_before_what_is_said_of_a_user_at_last() {
    let bits = |bit: u32| entries(1 << bit, 1 << bit).to_vec();
    let at_last = [
        (bits(DNS_DIRECT_BITS[0]), VIP, Rule::DnsDirect),
        (bits(DNS_DIRECT_BITS[1]), v6(9), Rule::DnsDirect),
        (bits(OUTBOUND_OFF_BIT), VIP, Rule::OutNoMatch),
        (bits(OUTBOUND_OFF_BIT), v6(9), Rule::OutNoMatch),
    ];
    for (mut ranges, to, rule) in at_last {
        assert_eq!(decided(ALL, to, &ranges), [Some((rule, 0)), None]);
        for index in [0, 1, LAST_INDEX] {
            ranges.truncate(2);
            ranges.push((List::DestinationExcluded, to, index));
            let expected = [Some((Rule::RangeExcluded, index)), None];
            assert_eq!(decided(ALL, to, &ranges), expected);
        }
        ranges.extend(entries(3, 3));
        ranges.rotate_left(3);
        let expected = [Some((Rule::OwnerExcluded, 0)), None];
        assert_eq!(decided(ALL, to, &ranges), expected);
    }
    // Each family has its own.
    assert_eq!(decided(ALL, v6(9), &bits(DNS_DIRECT_BITS[0])), [None; 2]);
    assert_eq!(decided(ALL, VIP, &bits(DNS_DIRECT_BITS[1])), [None; 2]);
    // Queries that go to their servers come first.
    let both = 1 << DNS_DIRECT_BITS[0] | 1 << OUTBOUND_OFF_BIT;
    let expected = [Some((Rule::DnsDirect, 0)), None];
    assert_eq!(decided(ALL, VIP, &entries(both, both)), expected);
}

#[test]
fn ports_are_kept_for_their_place_beside_all_others() {
    for index in [0, 1, LAST_INDEX] {
        let by_port = Some((Rule::OutPortExcluded, index));
        let port = (List::OutPortRangeExcluded, PORT, index);
        assert_eq!(decided(ALL, VIP, &[port]), [None, by_port]);
        let last = OWNER_ENTRIES - 1;
        let [user, of_port] = entries(1 << last, 1 << last);
        let owner = Some((Rule::OwnerExcluded, last));
        assert_eq!(decided(ALL, VIP, &[port, user, of_port]), [owner, by_port]);
        let destination = (List::DestinationExcluded, VIP, LAST_INDEX);
        let range = Some((Rule::RangeExcluded, LAST_INDEX));
        assert_eq!(decided(ALL, VIP, &[port, destination]), [range, by_port]);
    }
}

#[test]
fn lists_that_the_policy_has_not_are_not_asked() {
    let destination = (List::DestinationExcluded, VIP, 5);
    let port = (List::OutPortRangeExcluded, PORT, 6);
    let [user, of_port] = entries(1, 1);
    let all = [destination, port, user, of_port];
    let owner = Some((Rule::OwnerExcluded, 0));
    let range = Some((Rule::RangeExcluded, 5));
    let by_port = Some((Rule::OutPortExcluded, 6));
    for (list, expected) in [
        (List::OwnerExcluded, [owner, None]),
        (List::DestinationExcluded, [range, None]),
        (List::OutPortRangeExcluded, [None, by_port]),
        (List::OutPortExcluded, [None; 2]),
    ] {
        assert_eq!(decided(list.bit(), VIP, &all), expected, "{list:?}");
    }
}

#[test]
fn ports_come_after_what_stays_in_the_pod_where_that_is_not_redirected() {
    for (dialect, expected) in [
        (0, Rule::OutPortExcluded),
        (DIALECT_LO_UNTOUCHED | DIALECT_NO_LOCAL_RULES, Rule::OverLo),
    ] {
        let policy = Policy {
            lists: ALL,
            dialect,
            ..default_policy()
        };
        let tables = Fixture {
            ranges: vec![(List::OutPortRangeExcluded, PORT)],
            ..Fixture::default()
        };
        let rule = |to| outbound(&policy, &dial(APP, ANY, to, 80), &tables).rule;
        assert_eq!(rule(LO2), expected);
        assert_eq!(rule(VIP), Rule::OutPortExcluded);
    }
}

#[test]
fn connections_follow_them() {
    let policy = Policy {
        lists: ALL,
        ..default_policy()
    };
    let [user, of_port] = entries(1, 1);
    let tables = Ranges(vec![user, of_port]);
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!((decision.rule, decision.index), (Rule::OwnerExcluded, 0));
}
