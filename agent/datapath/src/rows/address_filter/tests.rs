use std::{collections::HashMap, net::IpAddr};

use ipnet::IpNet;
use sidetrack_common::{
    addr::Family,
    pod::{POD_ANY_ADDRESS, Route, RouteKey, RouteKind, may_be_own},
};

use super::{RouteId, of};

fn routes(local: &[&str]) -> HashMap<RouteId, Route> {
    local
        .iter()
        .map(|net| {
            let net: IpNet = net.parse().unwrap();
            let family = if net.addr().is_ipv4() {
                Family::V4
            } else {
                Family::V6
            };
            let key = RouteKey::new((7, 0), family, net.addr().into(), net.prefix_len());
            let route = Route {
                kind: RouteKind::Local as u32,
                ..Route::NONE
            };
            (RouteId::of(&key).unwrap(), route)
        })
        .collect()
}

fn address(text: &str) -> sidetrack_common::addr::Addr {
    text.parse::<IpAddr>().unwrap().into()
}

#[test]
fn every_local_address_passes() {
    for last in 0..=255 {
        let (v4, v6) = (format!("10.0.7.{last}"), format!("fd00::7:{last:x}"));
        let flags = of(&routes(&[&format!("{v4}/32"), &format!("{v6}/128")]));
        assert!(may_be_own(flags, address(&v4)), "{v4}");
        assert!(may_be_own(flags, address(&v6)), "{v6}");
    }
}

#[test]
fn a_local_range_lets_every_address_pass() {
    let flags = of(&routes(&["10.1.0.0/16", "127.0.0.0/8"]));
    assert_eq!(flags & POD_ANY_ADDRESS, POD_ANY_ADDRESS);
}

#[test]
fn most_other_addresses_are_known_not_to_be_local() {
    let flags = of(&routes(&[
        "10.0.0.2/32",
        "127.0.0.0/8",
        "127.0.0.1/32",
        "::1/128",
    ]));
    assert_eq!(flags.count_ones(), 1);
    let others = (0..=255).filter(|last| may_be_own(flags, address(&format!("10.0.9.{last}"))));
    let passed = others.count();
    assert!((8..=32).contains(&passed), "{passed} of 256");
}

#[test]
fn routes_to_others_are_not_in_the_filter() {
    let mut all = routes(&["10.0.0.2/32"]);
    for route in all.values_mut() {
        route.kind = RouteKind::Unicast as u32;
    }
    assert_eq!(of(&all), 0);
}

#[test]
fn targets_let_no_address_pass_and_own_addresses_among_them_do() {
    assert_eq!(of(&routes(&["100:0:0:1::/64", "::1/128"])), 0);
    let own = "100:0:0:1::9";
    let flags = of(&routes(&["100:0:0:1::/64", &format!("{own}/128")]));
    assert!(may_be_own(flags, address(own)));
    assert_ne!(flags & POD_ANY_ADDRESS, POD_ANY_ADDRESS);
    let flags = of(&routes(&["100:0:0:2::/64"]));
    assert_eq!(flags & POD_ANY_ADDRESS, POD_ANY_ADDRESS);
}
