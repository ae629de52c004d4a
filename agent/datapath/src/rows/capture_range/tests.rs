use std::collections::HashMap;

use sidetrack_common::pod::{Route, RouteKey, RouteKind};

use super::{RouteId, is_local};

fn routes(kinds: &[(&str, RouteKind)]) -> HashMap<RouteId, Route> {
    kinds
        .iter()
        .map(|(net, kind)| {
            let net: ipnet::Ipv4Net = net.parse().unwrap();
            let addr = std::net::IpAddr::V4(net.network()).into();
            let key = RouteKey::new(
                7,
                sidetrack_common::addr::Family::V4,
                addr,
                net.prefix_len(),
            );
            let route = Route {
                kind: *kind as u32,
                ..Route::NONE
            };
            (RouteId::of(&key).unwrap(), route)
        })
        .collect()
}

#[test]
fn the_usual_routes_of_a_pod_lead_there() {
    let usual = [
        ("0.0.0.0/0", RouteKind::Unicast),
        ("127.0.0.0/8", RouteKind::Local),
        ("127.0.0.1/32", RouteKind::Local),
        ("127.255.255.255/32", RouteKind::Group),
    ];
    assert!(is_local(&routes(&usual)));
}

#[test]
fn a_pod_without_127_8_is_found() {
    let narrow = [
        ("0.0.0.0/0", RouteKind::Unicast),
        ("127.0.0.1/32", RouteKind::Local),
    ];
    assert!(!is_local(&routes(&narrow)));
    assert!(!is_local(&routes(&[])));
}

#[test]
fn a_route_of_the_pods_own_within_the_range_is_found() {
    let hole = [
        ("127.0.0.0/8", RouteKind::Local),
        ("127.140.0.0/16", RouteKind::Unicast),
    ];
    assert!(!is_local(&routes(&hole)));
}
