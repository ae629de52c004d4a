//! Readings with made-up clocks.

use std::time::Duration;

use super::Meter;
use crate::{Connections, top::Row};

fn pod(cookie: u64, connections: Connections) -> (Option<u64>, Row) {
    let row = Row {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        state: "enrolled".to_owned(),
        reason: None,
        sidecar: None,
        waiting: None,
        per_second: None,
        connections: Some(connections),
    };
    (Some(cookie), row)
}

fn outbound(count: u64) -> Connections {
    Connections {
        outbound_redirected: count,
        ..Connections::default()
    }
}

/// The outbound rate of the only pod after each reading of (seconds, cookie, counters).
fn rates(readings: &[(f64, u64, Connections)]) -> Vec<Option<f64>> {
    let mut meter = Meter::default();
    let rates = readings.iter().map(|(at, cookie, counts)| {
        let pods = vec![pod(*cookie, *counts)];
        let (_, rows) = meter.read(Duration::from_secs_f64(*at), pods);
        rows[0].per_second.map(|rates| rates.outbound_redirected)
    });
    rates.collect()
}

#[test]
fn a_rate_takes_two_readings_and_their_own_time() {
    let found = rates(&[
        (10.0, 1, outbound(1_000)),
        (12.0, 1, outbound(1_010)),
        (12.5, 1, outbound(1_015)),
        (22.5, 1, outbound(1_015)),
    ]);
    assert_eq!(found, [None, Some(5.0), Some(10.0), Some(0.0)]);
    // No time has passed: no rate, rather than one without bound.
    let found = rates(&[(1.0, 1, outbound(1)), (1.0, 1, outbound(2))]);
    assert_eq!(found, [None, None]);
}

#[test]
fn a_pod_that_comes_anew_has_no_rate_at_first() {
    let found = rates(&[
        (0.0, 1, outbound(5)),
        (1.0, 2, outbound(500)),
        (2.0, 2, outbound(501)),
    ]);
    assert_eq!(found, [None, None, Some(1.0)], "another network namespace");
    let found = rates(&[
        (0.0, 1, outbound(500)),
        (1.0, 1, outbound(3)),
        (2.0, 1, outbound(5)),
        (3.0, 1, outbound(9)),
    ]);
    assert_eq!(
        found,
        [None, None, Some(2.0), Some(4.0)],
        "began at nothing"
    );
}

#[test]
fn a_reading_in_the_middle_of_a_move_does_no_harm() {
    let found = rates(&[
        (0.0, 1, outbound(1_000)),
        (1.0, 1, outbound(10)),
        (2.0, 1, outbound(1_020)),
        (3.0, 1, outbound(1_030)),
    ]);
    assert_eq!(found, [None, None, Some(10.0), Some(10.0)]);
}

#[test]
fn a_connection_that_fails_later_is_no_negative_rate() {
    let failed = Connections {
        outbound_redirected: 8,
        refused: 2,
        ..Connections::default()
    };
    let found = rates(&[(0.0, 1, outbound(10)), (1.0, 1, failed)]);
    assert_eq!(found, [None, Some(0.0)]);
    let mut meter = Meter::default();
    meter.read(Duration::ZERO, vec![pod(1, outbound(10))]);
    let (since, rows) = meter.read(Duration::from_secs(4), vec![pod(1, failed)]);
    assert_eq!(since, Some(Duration::from_secs(4)));
    assert_eq!(rows[0].per_second.expect("rates").refused, 0.5);
}

#[test]
fn pods_that_are_not_enrolled_have_no_counters() {
    let mut meter = Meter::default();
    let (_, mut waiting) = pod(1, outbound(0));
    waiting.connections = None;
    for second in 0..3 {
        let (_, rows) = meter.read(Duration::from_secs(second), vec![(None, waiting.clone())]);
        assert!(rows[0].per_second.is_none());
    }
    // Enrolled now.
    let (_, rows) = meter.read(Duration::from_secs(3), vec![pod(1, outbound(7))]);
    assert!(rows[0].per_second.is_none());
}
