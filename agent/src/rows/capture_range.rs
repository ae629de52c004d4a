//! Whether a pod can reach its sidecar by the addresses that redirected connections are sent to.

use std::{collections::HashMap, net::IpAddr};

use ipnet::IpNet;
use sidetrack_common::{
    addr::Addr,
    pod::Route,
    target::{INDEX, SHARED},
};

use crate::netns::routes::RouteId;

/// Whether all targets are local to the pod: 127.0.0.0/8 is, unless somebody changed its routes.
pub(super) fn is_local(routes: &HashMap<RouteId, Route>) -> bool {
    [INDEX, SHARED]
        .into_iter()
        .all(|range| is_range_local(range, routes))
}

fn is_range_local((first, prefix): (Addr, u8), routes: &HashMap<RouteId, Route>) -> bool {
    let Ok(range) = IpNet::new(IpAddr::from(first), prefix) else {
        return false;
    };
    let covering = routes
        .iter()
        .filter(|(id, _)| id.destination().contains(&range))
        .max_by_key(|(id, _)| id.destination().prefix_len());
    let mut within = routes
        .iter()
        .filter(|(id, _)| range.contains(&id.destination()));
    covering.is_some_and(|(_, route)| route.is_local()) && within.all(|(_, route)| route.is_local())
}

#[cfg(test)]
mod tests {
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
}
