//! Throw routes, and what a pod may have.

use sidetrack_common::pod::{Route, RouteKind};

use super::{ETH0, ETH1, LO, local, pod, row, rows_of, unicast};
use crate::netns::routes::{
    MAX_ROUTES,
    flat_route::{FlatRoute, TABLE_DEFAULT},
};

fn throw(destination: &str) -> FlatRoute {
    FlatRoute {
        kind: RouteKind::Throw,
        ifindex: 0,
        ..unicast(destination, 0)
    }
}

fn in_table_default(destination: &str, ifindex: u32) -> FlatRoute {
    FlatRoute {
        table: TABLE_DEFAULT,
        ..unicast(destination, ifindex)
    }
}

#[test]
fn a_throw_route_ends_the_lookup_in_its_table() {
    let snapshot = pod(vec![
        unicast("0.0.0.0/0", ETH0),
        throw("10.9.0.0/16"),
        unicast("10.9.1.0/24", ETH1),
    ]);
    let thrown = row(&snapshot, "10.9.0.0/16").unwrap();
    assert!(!thrown.is_unicast() && !thrown.is_local());
    assert_eq!(thrown.errno(), libc::ENETUNREACH);
    assert_eq!(row(&snapshot, "10.9.1.0/24").unwrap().ifindex, ETH1);
    assert_eq!(row(&snapshot, "0.0.0.0/0").unwrap().ifindex, ETH0);
}

#[test]
fn a_throw_route_leads_on_to_the_next_table() {
    let snapshot = pod(vec![
        unicast("10.0.0.0/8", ETH0),
        throw("10.9.0.0/16"),
        in_table_default("0.0.0.0/0", ETH1),
        in_table_default("10.9.1.0/24", LO),
        in_table_default("10.8.0.0/16", LO),
    ]);
    // Of a wider prefix of the next table, and of a narrower one.
    assert_eq!(row(&snapshot, "10.9.0.0/16").unwrap().ifindex, ETH1);
    assert_eq!(row(&snapshot, "10.9.1.0/24").unwrap().ifindex, LO);
    // Elsewhere the earlier table still decides.
    assert_eq!(row(&snapshot, "10.8.0.0/16"), None);
    assert_eq!(row(&snapshot, "10.0.0.0/8").unwrap().ifindex, ETH0);
}

#[test]
fn a_pod_has_a_quota_of_rows() {
    let number = |index: usize| format!("10.{}.{}.1/32", index / 250, index % 250);
    let many = |count: usize| (0..count).map(number);
    let few = pod(many(MAX_ROUTES).map(|net| unicast(&net, ETH0)).collect());
    assert_eq!(rows_of(&few).rows.len(), MAX_ROUTES);
    assert_eq!(rows_of(&few).note, None);

    let mut routes: Vec<FlatRoute> = many(MAX_ROUTES + 1)
        .map(|net| unicast(&net, ETH0))
        .collect();
    routes.push(local("10.1.0.5/32", ETH0));
    let too_many = pod(routes);
    assert!(row(&too_many, "10.1.0.5/32").unwrap().is_local());
    assert!(row(&too_many, "0.0.0.0/0").unwrap().is_unicast());
    assert!(row(&too_many, "::/0").unwrap().is_unicast());
    assert_eq!(rows_of(&too_many).rows.len(), 3);
    assert!(rows_of(&too_many).note.unwrap().contains("2048 routes"));

    // Routes elsewhere are none of them, also where they are the first.
    let mut routes = vec![unicast("0.0.0.0/0", ETH0), unicast("10.0.0.0/8", ETH0)];
    routes.extend(many(MAX_ROUTES + 1).map(|net| local(&net, ETH0)));
    let addresses = pod(routes);
    let rows = rows_of(&addresses).rows;
    assert_eq!(rows.len(), 2);
    assert!(rows.values().all(Route::is_unknown));
    assert!(rows_of(&addresses).note.unwrap().contains("2048 addresses"));
}
