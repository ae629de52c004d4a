use std::collections::HashMap;

use sidetrack_common::{
    addr::Family,
    pod::{LOOPBACK_IFINDEX, Route, RouteKey, RouteKind},
};

use super::{RouteId, is_local, is_local_v6};

fn routes(kinds: &[(&str, RouteKind)]) -> HashMap<RouteId, Route> {
    kinds
        .iter()
        .map(|(net, kind)| {
            let net: ipnet::IpNet = net.parse().unwrap();
            let family = match net {
                ipnet::IpNet::V4(_) => Family::V4,
                ipnet::IpNet::V6(_) => Family::V6,
            };
            let key = RouteKey::new((7, 0), family, net.network().into(), net.prefix_len());
            let route = Route {
                kind: *kind as u32,
                ifindex: LOOPBACK_IFINDEX,
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

#[test]
fn ipv6_targets_are_local_by_one_route_of_lo() {
    let default = ("::/0", RouteKind::Unicast);
    let targets = ("100:0:0:1::/64", RouteKind::Local);
    assert!(is_local_v6(&routes(&[default, targets])));
    let mut elsewhere = routes(&[default, targets]);
    let all = elsewhere.values_mut();
    all.for_each(|route| route.ifindex = LOOPBACK_IFINDEX + 1);
    assert!(!is_local_v6(&elsewhere));
    for other in [
        ("100:0:0:1::9/128", RouteKind::Local),
        ("100:0:0:1:8000::/65", RouteKind::Unicast),
    ] {
        assert!(!is_local_v6(&routes(&[default, targets, other])));
        assert!(!is_local_v6(&routes(&[default, other])));
    }
    // A wider one is somebody else's.
    let wider = ("100::/16", RouteKind::Local);
    assert!(!is_local_v6(&routes(&[default, wider])));
    let refused = ("100:0:0:1::/64", RouteKind::Unreachable);
    assert!(!is_local_v6(&routes(&[default, refused])));
}
