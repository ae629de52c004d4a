//! How often a pod's policy may change, and how much one turn writes.

use std::{fmt::Write as _, path::Path, sync::Arc};

use sidetrack_policy::manifest::{Document, NetnsRef, parse_pods};
use sidetrack_reconcile::{Listing, PodState};

use crate::{
    events::ORDINARY,
    node::Sabotage,
    run::{Run, ready},
};

/// Changes that are followed at once.
const BURST: usize = 5;
/// Rows that a turn writes before it ends.
const MAX_ROWS: usize = 8_192;

/// A pod from the API server whose policy excludes so many ports from this one on.
fn pod(name: &str, first: u16, count: u16) -> Document {
    let mut ports = String::new();
    for port in first..first + count {
        write!(ports, "{port},").unwrap();
    }
    let text = format!(
        r#"{{"kind": "Pod", "metadata": {{"name": "{name}", "namespace": "{name}", "uid": "uid-{name}",
            "annotations": {{"traffic.sidecar.istio.io/excludeOutboundPorts": "{}"}}}},
            "spec": {{"containers": [{{"name": "istio-proxy"}}]}},
            "status": {{"phase": "Running"}}}}"#,
        ports.trim_end_matches(',')
    );
    let (mut documents, problems) = parse_pods(Path::new("pod.json"), &text).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    let mut document = documents.remove(0);
    document.netns = Ok(NetnsRef::PodUid(format!("uid-{name}")));
    document
}

fn listing(pods: Vec<Document>) -> Listing {
    Listing {
        pods,
        complete: true,
        running_counts: true,
        ..Listing::default()
    }
}

/// A process of each pod runs.
fn run_with(names: &[&str]) -> Run {
    let run = Run::new(true, Sabotage::None);
    for name in names {
        let mut world = run.world.borrow_mut();
        let uid = format!("uid-{name}");
        let cookie = world.make_namespace(&uid, ORDINARY);
        world.start_process(&uid, cookie);
    }
    run
}

/// A value that differs for each policy of the pod.
fn active(run: &Run) -> u16 {
    let (_, enrollment) = run.core.enrollments().next().expect("a pod");
    enrollment.policy.excluded_outbound_ports[0].first as u16
}

/// How many policies were written so far.
fn written(run: &Run) -> usize {
    run.world.borrow().tables.used.len()
}

/// Rows of the lists that are there.
fn rows(run: &Run) -> usize {
    let world = run.world.borrow();
    let lists = world.tables.lists.values();
    lists.map(|it| it.policy.list_sizes().ports).sum()
}

#[test]
fn a_policy_that_changes_all_the_time_is_followed_once_a_second() {
    let mut run = run_with(&["p"]);
    ready(run.core.apply(&listing(vec![pod("p", 1, 1)])));
    assert_eq!(written(&run), 1);
    // Every 10 ms, for three seconds.
    for number in 0..300 {
        run.world.borrow_mut().now += std::time::Duration::from_millis(9);
        ready(run.core.apply(&listing(vec![pod("p", 2 + number, 1)])));
    }
    let changes = written(&run) - 1;
    assert!((BURST..=BURST + 4).contains(&changes), "{changes}");
    // Not lost: a second later the last one is active, whatever causes the next turn.
    run.tick(600);
    run.tick(600);
    assert_eq!((active(&run), written(&run)), (301, changes + 2));
    let (_, record) = run.core.pods().next().unwrap();
    assert_eq!(
        (record.state(), record.reason()),
        (PodState::Enrolled, None)
    );
    // After a quiet while there is a burst again.
    run.tick(6000);
    let before = written(&run);
    for number in 0..BURST as u16 {
        ready(run.core.apply(&listing(vec![pod("p", 1000 + number, 1)])));
        assert_eq!(active(&run), 1000 + number);
    }
    assert_eq!(written(&run), before + BURST);
    let violations = &run.world.borrow().violations;
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn a_pod_that_is_opted_out_and_in_all_the_time_is_enrolled_once_a_second() {
    let mut run = run_with(&["p"]);
    let opted_out = || {
        let mut out = pod("p", 1, 1);
        let labels = &mut Arc::make_mut(&mut out.pod).meta.labels;
        labels.interception = Some("disabled".to_owned());
        out
    };
    let mut enrolled = 0;
    for _ in 0..200 {
        run.world.borrow_mut().now += std::time::Duration::from_millis(9);
        ready(run.core.apply(&listing(vec![pod("p", 1, 1)])));
        enrolled += run.core.enrollments().count();
        ready(run.core.apply(&listing(vec![opted_out()])));
        assert_eq!(run.core.enrollments().count(), 0, "at once");
    }
    assert!((BURST..=BURST + 3).contains(&enrolled), "{enrolled}");
    ready(run.core.apply(&listing(vec![pod("p", 1, 1)])));
    run.tick(600);
    run.tick(600);
    assert_eq!(run.core.enrollments().count(), 1, "not lost");
}

#[test]
fn a_pod_with_short_lists_does_not_wait_for_those_with_long_ones() {
    const LONG: u16 = 6_000;
    let names = ["a", "b", "c", "d", "z"];
    let mut run = run_with(&names);
    let mut pods: Vec<Document> = (0..4)
        .map(|number| pod(names[usize::from(number)], 1 + number * 7_000, LONG))
        .collect();
    pods.push(pod("z", 1, 3));
    ready(run.core.apply(&listing(pods)));
    let enrolled = |run: &Run| -> Vec<String> {
        let all = run.core.enrollments();
        all.map(|(name, _)| name.name.clone()).collect()
    };
    assert_eq!(enrolled(&run), ["a", "b", "z"], "as much as a turn writes");
    let mut turns = 1;
    let mut before = rows(&run);
    assert!(before <= MAX_ROWS + usize::from(LONG));
    while run.core.has_more() {
        ready(run.core.proceed());
        let more = rows(&run) - before;
        assert!(more <= MAX_ROWS + usize::from(LONG), "{more} rows");
        before = rows(&run);
        turns += 1;
    }
    assert_eq!((turns, enrolled(&run).len()), (2, 5));
    // Removing them takes several turns as well.
    run.world.borrow_mut().processes.clear();
    ready(run.core.apply(&listing(Vec::new())));
    run.world.borrow_mut().now += std::time::Duration::from_secs(2);
    ready(run.core.retry());
    assert!(run.core.has_more());
    while run.core.has_more() {
        ready(run.core.proceed());
    }
    assert!(run.world.borrow().tables.policies.is_empty());
    let violations = &run.world.borrow().violations;
    assert!(violations.is_empty(), "{violations:?}");
}
