//! Rows of a policy: its bits, its loopback range and its keys.

use super::{
    DIALECT_DNS_PASSES_LOCAL, DIALECT_LO_UNTOUCHED, DIALECT_LOCAL_CAPTURED, DIALECT_NO_LOCAL_RULES,
    DIALECT_SELF_EXEMPT, DIALECT_SSH_IN, DIALECT_TUNNEL_IN, DIALECT_TUNNEL_OUT, InboundMode, List,
    NO_ID, Policy, RangeKey,
};
use crate::addr::Addr;

const DIALECT_BITS: [u8; 8] = [
    DIALECT_DNS_PASSES_LOCAL,
    DIALECT_LO_UNTOUCHED,
    DIALECT_NO_LOCAL_RULES,
    DIALECT_SELF_EXEMPT,
    DIALECT_LOCAL_CAPTURED,
    DIALECT_TUNNEL_OUT,
    DIALECT_TUNNEL_IN,
    DIALECT_SSH_IN,
];

const EMPTY: Policy = Policy {
    outbound_port: 15001,
    inbound_port: 15006,
    tunnel_port: 15008,
    inbound: InboundMode::Off as u8,
    outbound_all: 0,
    loopback_included: 0,
    loopback_v4_prefix: 32,
    dialect: 0,
    virtual_interfaces: 0,
    loopback_v4: [127, 0, 0, 1],
    lists: 0,
    proxy_uid: NO_ID,
    proxy_gid: NO_ID,
    transparent_mark: 0,
};

#[test]
fn a_policy_has_the_lists_whose_bits_are_set() {
    for one in List::ALL {
        for other in List::ALL {
            let policy = Policy {
                lists: one.bit(),
                ..EMPTY
            };
            assert_eq!(policy.has(other), one == other, "{one:?} {other:?}");
            let rest = Policy {
                lists: !one.bit(),
                ..EMPTY
            };
            assert_eq!(rest.has(other), one != other, "{one:?} {other:?}");
        }
    }
}

#[test]
fn a_policy_has_the_dialect_traits_whose_bits_are_set() {
    for one in DIALECT_BITS {
        for other in DIALECT_BITS {
            let policy = Policy {
                dialect: one,
                ..EMPTY
            };
            assert_eq!(policy.has_dialect(other), one == other, "{one} {other}");
            let rest = Policy {
                dialect: !one,
                ..EMPTY
            };
            assert_eq!(rest.has_dialect(other), one != other, "{one} {other}");
        }
    }
}

/// Against a prefix test of its own, bit by bit, for every prefix length a policy can have.
#[test]
fn loopback_is_what_the_configured_range_holds() {
    let first: [u8; 4] = [127, 170, 85, 51];
    for prefix in 8..=32_u8 {
        let policy = Policy {
            loopback_v4: first,
            loopback_v4_prefix: prefix,
            ..EMPTY
        };
        assert!(policy.is_loopback(Addr::v4(first)));
        for bit in 0..32_u8 {
            let dialed = u32::from_be_bytes(first) ^ (1 << (31 - bit));
            assert_eq!(
                policy.is_loopback(Addr::v4(dialed.to_be_bytes())),
                bit >= prefix,
                "bit {bit} of a /{prefix}"
            );
        }
    }
}

#[test]
fn ipv6_has_one_loopback_address() {
    assert!(EMPTY.is_loopback(Addr::LOOPBACK_V6));
    assert!(!EMPTY.is_loopback(Addr::SELF_V6));
    assert!(!EMPTY.is_loopback(Addr::UNSPECIFIED));
}

/// The trie finds a row when the row's prefix holds the looked up key: a lookup has all the bits, and
/// a row of the whole address has as many.
#[test]
fn a_lookup_has_the_key_of_the_longest_prefix() {
    let (v4, v6) = (Addr::v4([10, 0, 0, 2]), Addr::SELF_V6);
    for list in [List::RangeExcluded, List::RangeIncluded] {
        assert_eq!(RangeKey::host(7, list, v4), RangeKey::new(7, list, v4, 32));
        assert_eq!(RangeKey::host(7, list, v6), RangeKey::new(7, list, v6, 128));
    }
}

#[test]
fn prefixes_cover_the_fields_before_the_address() {
    let before_address = (size_of::<u32>() + 2 * size_of::<u16>()) as u32 * 8;
    let all_v6 = RangeKey::new(7, List::RangeIncluded, Addr::UNSPECIFIED, 0);
    assert_eq!(all_v6.prefix_len, before_address);
    // The twelve octets of the v4-mapped prefix.
    let all_v4 = RangeKey::new(7, List::RangeIncluded, Addr::v4([0; 4]), 0);
    assert_eq!(all_v4.prefix_len, before_address + 12 * 8);
    let whole = RangeKey::host(7, List::RangeIncluded, Addr::LOOPBACK_V6);
    assert_eq!(whole.prefix_len as usize, (size_of::<RangeKey>() - 4) * 8);
}

#[test]
fn a_mark_makes_the_mode_transparent() {
    for mark in [0, 1, 1337] {
        let policy = Policy {
            transparent_mark: mark,
            ..EMPTY
        };
        assert_eq!(policy.is_transparent(), mark != 0, "{mark}");
    }
}

#[test]
fn the_tunnel_port_is_exempt_in_dialects_that_say_so() {
    for (dialect, port, expected) in [
        (DIALECT_TUNNEL_OUT, 15008, true),
        (DIALECT_TUNNEL_OUT, 80, false),
        (0, 15008, false),
        (DIALECT_TUNNEL_IN, 15008, false),
    ] {
        let policy = Policy { dialect, ..EMPTY };
        assert_eq!(policy.is_tunnel_out(port), expected, "{dialect} {port}");
    }
}

#[test]
fn rules_about_the_pod_itself_are_there_unless_the_dialect_has_none() {
    for bit in DIALECT_BITS {
        let policy = Policy {
            dialect: bit,
            ..EMPTY
        };
        assert_eq!(
            policy.has_local_rules(),
            bit != DIALECT_NO_LOCAL_RULES,
            "{bit}"
        );
    }
}

#[test]
fn what_the_verifier_does_not_know_is_0() {
    for list in List::ALL {
        let policy = Policy {
            lists: list.bit(),
            ..EMPTY
        };
        assert_eq!(policy.zero(), 0, "{list:?}");
    }
}
