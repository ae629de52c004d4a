use sidetrack_live::{
    Sidecar,
    history::{Entry, Kind},
};

use super::{START, change, of_start, sidecars_in};
use crate::observe::refusals::Report;

const HANGS: Sidecar = Sidecar::Hangs {
    waiting: 5,
    seconds: 4,
};

#[test]
fn only_changes_are_said() {
    let said = |before, sidecar| change(before, &sidecar);
    for (kind, sidecar) in [
        (Kind::SidecarUp, Sidecar::Up),
        (Kind::SidecarDown, Sidecar::Down),
        (Kind::SidecarDown, Sidecar::InboundOnly),
        (Kind::SidecarHangs, HANGS),
    ] {
        assert_eq!(said(Some(kind), sidecar.clone()), None, "{sidecar:?}");
    }
    for (before, sidecar, words) in [
        (Kind::SidecarUp, HANGS, "5 connections wait"),
        (Kind::SidecarHangs, Sidecar::Up, "accepts connections again"),
        (Kind::SidecarDown, Sidecar::Up, "listens on both ports"),
        (Kind::SidecarUp, Sidecar::Down, "does not listen"),
        (Kind::SidecarUp, Sidecar::OutboundOnly, "outbound port only"),
        (
            Kind::SidecarUp,
            Sidecar::NoDns,
            "not listen on its DNS port",
        ),
    ] {
        let text = said(Some(before), sidecar.clone()).expect("a sentence");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_pod_that_is_new_has_changed_nothing() {
    for sidecar in [Sidecar::Up, Sidecar::Down, Sidecar::NotYet] {
        assert_eq!(change(None, &sidecar), None);
    }
    assert!(change(None, &HANGS).is_some());
}

#[test]
fn what_is_not_known_is_no_change() {
    for sidecar in [Sidecar::Unknown, Sidecar::Listens, Sidecar::NotYet] {
        assert_eq!(change(Some(Kind::SidecarUp), &sidecar), None);
    }
}

#[test]
fn the_last_word_of_an_earlier_agent_counts() {
    let entry = |pod: &str, kind| Entry {
        time: String::new(),
        first: None,
        count: 1,
        kind,
        pod: Some(pod.to_owned()),
        text: String::new(),
    };
    let found = sidecars_in(&[
        entry("shop/web-0", Kind::SidecarDown),
        entry("shop/web-0", Kind::SidecarUp),
        entry("shop/web-0", Kind::Refused),
        entry("shop/web-1", Kind::Enrolled),
    ]);
    assert_eq!(found.get("shop/web-0"), Some(&Kind::SidecarUp));
    assert_eq!(found.len(), 1);
}

#[test]
fn refusals_of_a_start_are_no_event_unless_it_lasts() {
    let of = |sidecar, since| of_start(&sidecar, since, "a/b".to_owned());
    let now = Report::Now("a/b".to_owned());
    for sidecar in [Sidecar::Down, Sidecar::OutboundOnly, Sidecar::NotYet] {
        assert_eq!(of(sidecar.clone(), START / 2), Report::Later);
        assert_eq!(of(sidecar, START), now);
    }
    for sidecar in [Sidecar::Up, Sidecar::Listens] {
        assert_eq!(of(sidecar, START / 2), Report::Never);
    }
    assert_eq!(of(Sidecar::Up, 2 * START), Report::Never);
}
