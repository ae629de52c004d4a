//! Rows of a pod: which families its rules cover, and what a route means to connect.

use super::{
    LOOPBACK_IFINDEX, POD_ADDED_SELF_V6, POD_ANY_ADDRESS, POD_BEFORE_SIDECAR, POD_CAPTURE_V6,
    POD_DNS, POD_FORWARDS, POD_HAS_IFACE_RULES, POD_NODE_CALLS, POD_OWN_TARGETS,
    POD_OWN_TARGETS_V6, Pod, Route, RouteKey, RouteKind, address_bit, has_own_targets, may_be_own,
};
use crate::addr::{Addr, Family};

const ALL_KINDS: [RouteKind; 7] = [
    RouteKind::None,
    RouteKind::Local,
    RouteKind::Unicast,
    RouteKind::Unreachable,
    RouteKind::Prohibit,
    RouteKind::Blackhole,
    RouteKind::Group,
];

fn route(kind: RouteKind) -> Route {
    Route {
        kind: kind as u32,
        ..Route::NONE
    }
}

#[test]
fn ipv4_is_always_captured_and_ipv6_by_its_flag_alone() {
    let all = POD_CAPTURE_V6 | POD_ADDED_SELF_V6 | POD_HAS_IFACE_RULES | POD_BEFORE_SIDECAR;
    for flags in 0..=all {
        let pod = Pod {
            policy: 1,
            flags,
            netns_inode: 0,
            namespace: [0; super::NAMESPACE_LEN],
            name: [0; super::NAME_LEN],
            uid: [0; super::UID_LEN],
        };
        assert!(pod.captures(Family::V4));
        assert_eq!(pod.captures(Family::V6), flags % 2 == 1, "flags {flags}");
    }
}

#[test]
fn a_route_gives_back_the_position_of_its_excluded_device() {
    assert_eq!(Route::NONE.excluded(), None);
    for position in [0, 1, 2, 7, 255, 256, 65_535, (1 << 24) - 1] {
        let route = Route {
            flags: Route::excluding(position),
            ..route(RouteKind::Unicast)
        };
        assert_eq!(route.excluded(), Some(position));
    }
}

/// Other flags of a route leave the answer alone.
#[test]
fn only_the_flag_excludes_a_device() {
    let excluded = Route {
        flags: Route::excluding(3) | 0xfe,
        ..Route::NONE
    };
    assert_eq!(excluded.excluded(), Some(3));
    let listed_nowhere = Route {
        flags: Route::excluding(3) & !1 | 0xfe,
        ..Route::NONE
    };
    assert_eq!(listed_nowhere.excluded(), None);
}

#[test]
fn each_kind_of_route_has_one_meaning() {
    for kind in ALL_KINDS {
        let route = route(kind);
        assert_eq!(route.is_local(), kind == RouteKind::Local, "{kind:?}");
        assert_eq!(route.is_unicast(), kind == RouteKind::Unicast, "{kind:?}");
        assert_eq!(
            route.has_device(),
            matches!(kind, RouteKind::Unicast | RouteKind::Group),
            "{kind:?}"
        );
    }
}

#[test]
fn each_unusable_route_has_its_errno() {
    for (kind, errno) in [
        (RouteKind::None, 101),
        (RouteKind::Unreachable, 113),
        (RouteKind::Prohibit, 13),
        (RouteKind::Blackhole, 22),
        (RouteKind::Group, 101),
    ] {
        assert_eq!(route(kind).errno(), errno, "{kind:?}");
    }
}

/// The trie finds a row when the row's prefix holds the looked up key: a lookup has all the bits, and
/// a row of the whole address has as many.
#[test]
fn a_lookup_has_the_key_of_the_longest_prefix() {
    let (v4, v6) = (Addr::v4([10, 0, 0, 2]), Addr::SELF_V6);
    assert_eq!(
        RouteKey::host((7, 0), v4),
        RouteKey::new((7, 0), Family::V4, v4, 32)
    );
    assert_eq!(
        RouteKey::host((7, 0), v6),
        RouteKey::new((7, 0), Family::V6, v6, 128)
    );
}

#[test]
fn prefixes_cover_the_fields_before_the_address() {
    let before_address = (size_of::<u32>() + size_of::<u64>()) as u32 * 8;
    let default_v6 = RouteKey::new((7, 0), Family::V6, Addr::UNSPECIFIED, 0);
    assert_eq!(default_v6.prefix_len, before_address);
    // The twelve octets of the v4-mapped prefix.
    let default_v4 = RouteKey::new((7, 0), Family::V4, Addr::v4([0; 4]), 0);
    assert_eq!(default_v4.prefix_len, before_address + 12 * 8);
    let whole = RouteKey::host((7, 0), Addr::LOOPBACK_V6);
    assert_eq!(whole.prefix_len as usize, (size_of::<RouteKey>() - 4) * 8);
}

#[test]
fn a_filter_lets_the_pod_s_addresses_pass() {
    let (own, other) = (Addr::v4([10, 0, 0, 2]), Addr::v4([10, 0, 0, 3]));
    assert_ne!(address_bit(own), address_bit(other));
    let flags = address_bit(own);
    assert!(may_be_own(flags, own));
    assert!(!may_be_own(flags, other));
    assert!(may_be_own(POD_ANY_ADDRESS, other));
}

#[test]
fn the_bit_of_an_address_is_none_of_the_flags() {
    for last in 0..=255 {
        let bit = address_bit(Addr::v4([192, 0, 2, last]));
        assert_eq!(bit.count_ones(), 1);
        assert_eq!(bit & POD_ANY_ADDRESS, bit, "{last}");
    }
}

#[test]
fn every_word_of_an_address_chooses_its_bit() {
    for others in [0, u32::MAX] {
        for word in 0..4 {
            let bits = (0..=255_u32).fold(0, |bits, n| {
                let mut words = [others; 4];
                words[word] = n << 24 | n;
                bits | address_bit(Addr::from_v6_be(words))
            });
            assert_eq!(bits, POD_ANY_ADDRESS, "word {word} among {others:x}");
        }
    }
}

#[test]
fn each_flag_has_a_bit_of_its_own() {
    let flags = [
        POD_CAPTURE_V6,
        POD_ADDED_SELF_V6,
        POD_HAS_IFACE_RULES,
        POD_BEFORE_SIDECAR,
        POD_OWN_TARGETS,
        POD_FORWARDS,
    ];
    let all = flags.iter().fold(POD_ANY_ADDRESS, |all, flag| {
        assert_eq!((flag.count_ones(), all & flag), (1, 0), "{flag}");
        all | flag
    });
    assert_eq!(all.count_ones(), 16 + flags.len() as u32);
}

#[test]
fn flags_are_bits_of_their_own() {
    let flags = [
        POD_CAPTURE_V6,
        POD_ADDED_SELF_V6,
        POD_HAS_IFACE_RULES,
        POD_BEFORE_SIDECAR,
        POD_OWN_TARGETS,
        POD_FORWARDS,
        POD_DNS,
        POD_OWN_TARGETS_V6,
        POD_NODE_CALLS,
    ];
    let mut seen = POD_ANY_ADDRESS;
    for flag in flags {
        assert_eq!(flag.count_ones(), 1, "{flag:#x}");
        assert_eq!(seen & flag, 0, "{flag:#x}");
        seen |= flag;
    }
    for flag in flags {
        let of = |family| has_own_targets(flag, family);
        assert_eq!(of(Family::V4), flag == POD_OWN_TARGETS, "{flag:#x}");
        assert_eq!(of(Family::V6), flag == POD_OWN_TARGETS_V6, "{flag:#x}");
    }
}

#[test]
fn a_route_is_passed_over_for_another_interface() {
    let route = |kind: RouteKind, flags, ifindex| Route {
        kind: kind as u32,
        flags,
        ifindex,
        source: Addr::UNSPECIFIED,
    };
    let excluded = Route::excluding(3);
    for (route, passed_over) in [
        (route(RouteKind::Local, 0, LOOPBACK_IFINDEX), true),
        (route(RouteKind::Local, 0, 7), false),
        (route(RouteKind::Unicast, excluded, 2), true),
        (route(RouteKind::Unicast, excluded, 7), false),
        // The rules may leave alone what leaves by the interface that the socket is bound to.
        (route(RouteKind::Unicast, 0, 2), true),
        (route(RouteKind::Unicast, 0, 7), false),
        // No interface makes these usable.
        (route(RouteKind::Unreachable, 0, 0), false),
        (route(RouteKind::None, 0, 0), false),
    ] {
        assert_eq!(route.is_passed_over(7), passed_over, "{route:?}");
        for none in [0, LOOPBACK_IFINDEX] {
            assert!(!route.is_passed_over(none), "{route:?}");
        }
    }
}
