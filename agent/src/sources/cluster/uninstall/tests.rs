use serde_json::json;
use sidetrack_policy::facts::ObjectFacts;

use super::{Ending, Event, Uninstall};

fn object() -> ObjectFacts {
    ObjectFacts::default()
}

fn listed(objects: usize) -> Vec<Event<ObjectFacts>> {
    let mut events = vec![Event::Init];
    events.extend((0..objects).map(|_| Event::InitApply(object())));
    events.push(Event::InitDone);
    events
}

/// With both objects there.
fn installed() -> Uninstall {
    let mut uninstall = Uninstall::default();
    for event in listed(1) {
        uninstall.daemonset(&event);
        uninstall.config(&event);
    }
    assert_eq!(*uninstall.ending.borrow(), Ending::Keep);
    uninstall
}

#[test]
fn a_deleted_daemonset_alone_is_no_uninstall() {
    let mut uninstall = installed();
    uninstall.daemonset(&Event::Delete(object()));
    assert_eq!(*uninstall.ending.borrow(), Ending::Undecided);
    uninstall.daemonset(&Event::Apply(object()));
    assert_eq!(*uninstall.ending.borrow(), Ending::Keep);
}

#[test]
fn both_deleted_in_either_order() {
    let mut uninstall = installed();
    uninstall.daemonset(&Event::Delete(object()));
    uninstall.config(&Event::Delete(object()));
    assert_eq!(*uninstall.ending.borrow(), Ending::Remove);
    let mut uninstall = installed();
    uninstall.config(&Event::Delete(object()));
    assert_eq!(*uninstall.ending.borrow(), Ending::Keep);
    uninstall.daemonset(&Event::Delete(object()));
    assert_eq!(*uninstall.ending.borrow(), Ending::Remove);
}

#[test]
fn deletion_that_has_begun_counts() {
    let metadata = json!({"name": "sidetrack", "deletionTimestamp": "2026-11-21T07:00:00Z"});
    let ending = serde_json::from_value(json!({"metadata": metadata})).unwrap();
    let mut uninstall = installed();
    uninstall.daemonset(&Event::Apply(ending));
    assert_eq!(*uninstall.ending.borrow(), Ending::Undecided);
}

#[test]
fn deleted_while_the_watch_was_down() {
    let mut uninstall = installed();
    for event in listed(0) {
        uninstall.daemonset(&event);
        uninstall.config(&event);
    }
    assert_eq!(*uninstall.ending.borrow(), Ending::Remove);
}

#[test]
fn what_never_existed_is_not_deleted() {
    let mut uninstall = Uninstall::default();
    for event in listed(0) {
        uninstall.daemonset(&event);
        uninstall.config(&event);
    }
    assert_eq!(*uninstall.ending.borrow(), Ending::Keep);
}

#[test]
fn the_namespace_ends() {
    let mut uninstall = installed();
    uninstall.namespace_ends(true);
    assert_eq!(*uninstall.ending.borrow(), Ending::Remove);
}

/// An answer 401 is no proof, and what is known already stays known.
#[test]
fn a_refused_token_leaves_it_open() {
    let mut uninstall = installed();
    uninstall.refused(true);
    assert_eq!(*uninstall.ending.borrow(), Ending::Unknown);
    uninstall.refused(false);
    assert_eq!(*uninstall.ending.borrow(), Ending::Keep);
    uninstall.daemonset(&Event::Delete(object()));
    uninstall.refused(true);
    assert_eq!(*uninstall.ending.borrow(), Ending::Undecided);
    uninstall.config(&Event::Delete(object()));
    assert_eq!(*uninstall.ending.borrow(), Ending::Remove);
}
