use ipnet::IpNet;
use sidetrack_common::{
    addr::{Addr, Family},
    pod::RouteKey,
};

use super::RouteId;

#[test]
fn keys_convert_both_ways() {
    for text in [
        "0.0.0.0/0",
        "10.1.0.0/16",
        "10.1.2.3/32",
        "::/0",
        "fd00::/64",
    ] {
        for view in [0, 5] {
            let id = RouteId::new((7, view), text.parse().unwrap());
            assert_eq!(RouteId::of(&id.key()), Some(id), "{text}");
            assert_eq!(id.is_in_first_view(), view == 0);
        }
    }
}

#[test]
fn keys_hold_the_network_without_host_bits() {
    let net: IpNet = "10.1.2.3/16".parse().unwrap();
    let key = RouteId::new((7, 0), net).key();
    assert_eq!(key.addr, Addr::v4([10, 1, 0, 0]));
    assert_eq!(key.prefix_len, 96 + 96 + 16);
}

#[test]
fn malformed_keys_have_no_id() {
    let key = RouteKey::new((7, 0), Family::V4, Addr::v4([10, 0, 0, 0]), 8);
    for prefix_len in [0, 95, 96, 96 + 95, 96 + 129] {
        let bad = RouteKey { prefix_len, ..key };
        assert_eq!(RouteId::of(&bad), None, "{prefix_len}");
    }
    let bad = RouteKey {
        family: Family::V6 as u32,
        ..key
    };
    assert_eq!(RouteId::of(&bad), None);
}
