//! How often pods are tried and listeners searched, and the states in between.

use std::time::Duration;

use sidetrack_reconcile::PodState;

use crate::{
    events::{Event, LIST, ORDINARY},
    pods::Variant,
    run::Run,
    world::INBOUND,
};

/// Ticks twice a second; answers how often processes were read.
fn reads_in(run: &mut Run, seconds: u32) -> u32 {
    let before = run.world.borrow().reads.get();
    for _ in 0..seconds * 2 {
        run.tick(500);
    }
    run.world.borrow().reads.get() - before
}

fn state(run: &Run) -> (PodState, String) {
    let (_, record) = run.core.pods().next().expect("a pod");
    (
        record.state(),
        record.reason().unwrap_or_default().to_owned(),
    )
}

#[test]
fn a_waiting_pod_is_tried_slowly_after_a_minute() {
    let mut run = Run::after(
        true,
        &[
            Event::Create(1, Variant::Plain),
            Event::List { complete: false },
        ],
    );
    assert_eq!(state(&run).0, PodState::Waiting);
    // Twice a second, the last time when the minute is over.
    assert_eq!(reads_in(&mut run, 61), 121);
    assert!((9..=11).contains(&reads_in(&mut run, 50)));
    // A listing starts anew with this try, and not with the minute.
    run.happen(LIST);
    assert!((9..=11).contains(&reads_in(&mut run, 50)));
    run.happen(Event::Start(1, ORDINARY));
    run.tick(5000);
    assert_eq!(state(&run), (PodState::Enrolled, String::new()));
    // Settled: nothing is read but for listeners.
    assert!(reads_in(&mut run, 60) < 8);
}

#[test]
fn an_enrolled_pod_without_processes_is_tried_slowly_after_a_minute() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
    ];
    let mut run = Run::after(true, &events);
    run.happen(Event::End(0));
    assert!(reads_in(&mut run, 55) >= 110);
    reads_in(&mut run, 10);
    assert!(reads_in(&mut run, 50) < 20);
    assert_eq!(state(&run).0, PodState::Enrolled);
}

#[test]
fn a_settled_pod_has_a_minute_of_fast_tries_again() {
    let events = [Event::Create(0, Variant::Plain), LIST];
    let mut run = Run::after(true, &events);
    reads_in(&mut run, 70);
    run.happen(Event::Start(0, ORDINARY));
    run.tick(5000);
    run.happen(Event::Replace(0, ORDINARY));
    run.happen(Event::End(0));
    run.tick(500);
    assert!(reads_in(&mut run, 50) >= 100);
}

#[test]
fn a_pod_that_has_waited_is_not_slow_for_good() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    reads_in(&mut run, 70);
    run.happen(Event::Start(0, ORDINARY));
    // Not by a try.
    run.happen(Event::Awaited(0));
    assert_eq!(state(&run).0, PodState::Enrolled);
    run.tick(5000);
    run.happen(Event::End(0));
    run.tick(500);
    assert!(reads_in(&mut run, 50) >= 100);
}

#[test]
fn between_containers_a_pod_gets_another_policy() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
        Event::End(0),
        Event::Tick(500),
        Event::Change(0, Variant::Ports),
        LIST,
    ];
    let run = Run::after(true, &events);
    let (_, enrollment) = run.core.enrollments().next().expect("an enrollment");
    assert_eq!(Some(&*enrollment.policy), Variant::Ports.policy());
}

#[test]
fn other_pods_news_try_no_waiting_pod() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain)]);
    let waiting = run.changed(|_| {});
    run.list_one(waiting.clone());
    reads_in(&mut run, 70);
    let before = run.world.borrow().reads.get();
    for variant in [Variant::OptedOut, Variant::NoSidecar].repeat(10) {
        run.happen(Event::Create(1, variant));
        let other = run.pods[&1].document(true);
        run.list_all(vec![waiting.clone(), other]);
    }
    let reads = run.world.borrow().reads.get() - before;
    assert!(reads <= 1, "{reads} times");
}

/// As with routes that flap in a namespace with millions of them.
#[test]
fn a_pod_that_takes_long_to_read_gets_a_hundredth_of_the_time() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
    ];
    let mut run = Run::after(true, &events);
    run.world.borrow_mut().namespace_takes = Duration::from_millis(500);
    let began = run.world.borrow().now;
    for number in 0..400 {
        run.happen(Event::Routes(0, number));
        run.tick(500);
    }
    let took = run.world.borrow().now - began;
    assert!(took < Duration::from_secs(204), "{took:?}");
    // What was not read is read later.
    run.tick(60_000);
    run.tick(500);
    let (_, enrollment) = run.core.enrollments().next().expect("an enrollment");
    assert!(!enrollment.stale);
}

#[test]
fn listeners_are_searched_less_and_less_often() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
    ];
    let mut run = Run::after(true, &events);
    let start = run.world.borrow().searches;
    let mut at = Vec::new();
    let mut seen = start;
    for second in 1..=1500 {
        run.tick(1000);
        let searches = run.world.borrow().searches;
        if searches > seen {
            at.push(second);
            seen = searches;
        }
    }
    let pauses: Vec<i32> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((5..=8).contains(&at[0]), "{at:?}");
    for (pause, expected) in pauses.iter().zip([10, 20, 40, 80, 160, 300, 300]) {
        assert!((expected..=expected + 3).contains(pause), "{pauses:?}");
    }
    assert!(pauses.len() >= 7, "{pauses:?}");
    // Known listeners are not searched.
    run.happen(Event::Listen(0));
    run.tick(2500);
    let seen = run.world.borrow().searches;
    for _ in 0..200 {
        run.tick(2500);
    }
    assert_eq!(run.world.borrow().searches, seen);
    // One vanishes although its socket is open: the search is due at once.
    run.world.borrow_mut().tables.listeners.clear();
    run.tick(2500);
    assert_eq!(run.world.borrow().searches, seen + 1);
    assert_eq!(run.world.borrow().tables.listeners.len(), 2);
}

/// Its connections are decided by the policy before.
#[test]
fn a_change_that_fails_does_not_say_that_the_pod_is_not_enrolled() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
    ];
    let mut run = Run::after(true, &events);
    run.core.drain_events();
    run.happen(Event::FailNth(1));
    run.happen(Event::Change(0, Variant::Ports));
    run.happen(LIST);
    let [event] = <[_; 1]>::try_from(run.core.drain_events()).expect("one event");
    assert_eq!((event.reason, event.warning), ("PolicyRejected", true));
    let end = "; the previous policy stays active";
    assert!(event.note.ends_with(end), "{}", event.note);
    assert_eq!(state(&run).0, PodState::Outdated);
}

/// A force-deleted pod of a StatefulSet still runs when its successor, which has opted out or is rejected, has its name.
#[test]
fn what_an_earlier_agent_had_of_another_pod_with_the_name() {
    for variant in [Variant::OptedOut, Variant::Bad] {
        let events = [
            Event::Create(0, Variant::Plain),
            Event::Start(0, ORDINARY),
            LIST,
        ];
        let mut run = Run::after(true, &events);
        let row = |run: &Run| run.world.borrow().tables.pods.len();
        run.happen(Event::Create(0, variant));
        run.happen(Event::Restart);
        run.happen(LIST);
        assert_eq!(row(&run), 1, "{variant:?}: the old pod stays intercepted");
        let (found, reason) = state(&run);
        let expected = match variant {
            Variant::Bad => PodState::Rejected,
            _ => PodState::Skipped,
        };
        assert_eq!(found, expected, "{reason}");
        run.happen(Event::EndDeleted);
        run.tick(2500);
        assert_eq!(row(&run), 0, "{variant:?}");
    }
}

/// A search may end before it has seen all.
#[test]
fn a_sidecar_that_is_known_in_part_is_searched_again() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        Event::Listen(0),
    ];
    let mut run = Run::after(true, &events);
    let mut missed = Vec::new();
    for process in run.world.borrow_mut().processes.values_mut() {
        missed.extend(process.listens.iter().copied().filter(|it| it.1 == INBOUND));
        process.listens.retain(|it| it.1 != INBOUND);
    }
    run.happen(LIST);
    assert_eq!(run.world.borrow().tables.listeners.len(), 1);
    for process in run.world.borrow_mut().processes.values_mut() {
        process.listens.extend(missed.iter().copied());
    }
    run.tick(6000);
    assert_eq!(run.world.borrow().tables.listeners.len(), 2);
}

#[test]
fn states_of_a_pod_through_its_life() {
    let mut run = Run::after(false, &[Event::Create(0, Variant::Bad), LIST]);
    assert_eq!(state(&run).0, PodState::Rejected);
    run.happen(Event::Change(0, Variant::Plain));
    run.happen(LIST);
    let (waiting, reason) = state(&run);
    assert_eq!(waiting, PodState::Waiting);
    assert!(reason.contains("is missing"), "{reason}");
    run.happen(Event::Start(0, ORDINARY));
    run.tick(500);
    assert_eq!(state(&run), (PodState::Enrolled, String::new()));
    run.happen(Event::Change(0, Variant::Bad));
    run.happen(LIST);
    let (outdated, reason) = state(&run);
    assert_eq!(outdated, PodState::Outdated);
    assert!(reason.contains("OTHER"), "{reason}");
    run.happen(Event::Restart);
    run.happen(LIST);
    let (shown, reason) = state(&run);
    assert_eq!(shown, PodState::Outdated);
    assert!(reason.contains("OTHER"), "{reason}");
    assert_eq!(run.core.pods_of_earlier_agents().len(), 1);
    run.happen(Event::Vanish(0));
    run.tick(500);
    assert_eq!(state(&run).0, PodState::Rejected);
    assert!(run.core.pods_of_earlier_agents().is_empty());
    run.happen(Event::Change(0, Variant::OptedOut));
    run.happen(LIST);
    assert_eq!(state(&run).0, PodState::Skipped);
    let violations = &run.world.borrow().violations;
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn a_deleted_pod_that_runs_is_read_again_after_a_failure() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
        Event::FailNth(0),
        Event::Routes(0, 1),
        Event::Delete(0),
        LIST,
    ];
    let mut run = Run::after(true, &events);
    run.tick(500);
    let (_, enrollment) = run.core.enrollments().next().expect("it still runs");
    assert!(!enrollment.stale);
}

#[test]
fn events_report_what_happened() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
    ];
    let mut run = Run::after(true, &events);
    let reported = |run: &mut Run| -> Vec<(&'static str, bool)> {
        let all = run.core.drain_events().into_iter();
        all.map(|event| {
            assert_eq!(event.uid.as_deref(), run.pods.get(&0).map(|it| &*it.uid));
            (event.reason, event.warning)
        })
        .collect()
    };
    assert_eq!(reported(&mut run), [("Enrolled", false)]);
    for (variant, expected) in [
        (Variant::Ports, ("PolicyChanged", false)),
        (Variant::Bad, ("PolicyRejected", true)),
        (Variant::OptedOut, ("Released", false)),
        (Variant::Plain, ("Enrolled", false)),
    ] {
        run.happen(Event::Change(0, variant));
        run.happen(LIST);
        assert_eq!(reported(&mut run), [expected], "{variant:?}");
        run.happen(LIST);
        assert_eq!(reported(&mut run), [], "{variant:?}");
    }
    // What follows a warning says that it is over, also where the active policy is the right one.
    for (variant, expected) in [
        (Variant::Bad, &[("PolicyRejected", true)][..]),
        (Variant::Plain, &[("PolicyAccepted", false)]),
        // The same once more.
        (Variant::Bad, &[("PolicyRejected", true)]),
        (Variant::Plain, &[("PolicyAccepted", false)]),
        // Its rules stay as they are.
        (Variant::Misspelt, &[("UnknownAnnotation", true)]),
        (Variant::Plain, &[("PolicyAccepted", false)]),
        (Variant::OptedOut, &[("Released", false)]),
        (
            Variant::Misspelt,
            &[("Enrolled", false), ("UnknownAnnotation", true)],
        ),
        (Variant::Plain, &[("PolicyAccepted", false)]),
        (Variant::Bad, &[("PolicyRejected", true)]),
        (Variant::Ports, &[("PolicyChanged", false)]),
        (Variant::Bad, &[("PolicyRejected", true)]),
    ] {
        run.happen(Event::Change(0, variant));
        run.happen(LIST);
        assert_eq!(reported(&mut run), expected, "{variant:?}");
    }
    run.happen(Event::Restart);
    run.happen(LIST);
    assert_eq!(reported(&mut run), [("PolicyRejected", true)]);
    run.happen(Event::Change(0, Variant::Plain));
    run.happen(LIST);
    assert_eq!(reported(&mut run), [("PolicyAccepted", false)]);
    // A pod that waits causes no event.
    run.happen(Event::Create(1, Variant::Plain));
    run.happen(LIST);
    assert_eq!(reported(&mut run), []);
    run.happen(Event::Delete(1));
    run.happen(LIST);
    // For a pod that an earlier agent had enrolled nothing has changed.
    run.happen(Event::Restart);
    run.happen(LIST);
    assert_eq!(reported(&mut run), []);
    assert_eq!(state(&run), (PodState::Enrolled, String::new()));
}

#[test]
fn an_enrollment_that_fails_is_reported_once() {
    let mut run = Run::after(
        true,
        &[Event::Create(0, Variant::Plain), Event::Start(0, 3), LIST],
    );
    let reported = |run: &mut Run| -> Vec<_> {
        let all = run.core.drain_events().into_iter();
        all.map(|it| it.reason).collect()
    };
    assert_eq!(reported(&mut run), ["NotEnrolled"]);
    run.tick(500);
    run.tick(500);
    assert_eq!(reported(&mut run), [""; 0]);
    assert_eq!(state(&run).0, PodState::Rejected);
}

#[test]
fn the_map_of_listeners_is_read_every_two_seconds() {
    let mut run = Run::after(true, &[LIST]);
    run.tick(2000);
    let before = run.world.borrow().listener_reads.get();
    reads_in(&mut run, 20);
    assert_eq!(run.world.borrow().listener_reads.get() - before, 10);
}

#[test]
fn a_rejected_manifest_says_whether_the_previous_policy_is_active() {
    const STAYS_ACTIVE: &str = "; the previous policy stays active";
    for (restarts, starts, kept) in [
        (false, true, true),
        (true, true, true),
        (false, false, false),
    ] {
        let mut run = Run::after(true, &[Event::Create(0, Variant::Plain)]);
        if starts {
            run.happen(Event::Start(0, ORDINARY));
        }
        run.happen(LIST);
        if restarts {
            run.happen(Event::Restart);
        }
        run.core.drain_events();
        run.happen(Event::Change(0, Variant::Bad));
        run.happen(LIST);
        let events = run.core.drain_events();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0].note.ends_with(STAYS_ACTIVE), kept, "{events:?}");
    }
}

#[test]
fn a_namespace_is_followed_to_another_process() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
        Event::Start(0, ORDINARY),
    ];
    let mut run = Run::after(true, &events);
    let first = *run.world.borrow().processes.keys().next().unwrap();
    run.world.borrow_mut().end_process(first);
    run.tick(500);
    assert_eq!(state(&run), (PodState::Enrolled, String::new()));
    let path = run.core.enrollments().next().unwrap().1.path.clone();
    assert!(run.world.borrow().at(&path).is_some(), "{}", path.display());
    assert!(reads_in(&mut run, 50) < 20);
}
