use std::time::Duration;

use super::{Entry, Flags, Kind};

fn entry(time: &str, kind: Kind, pod: Option<&str>) -> Entry {
    Entry {
        time: time.to_owned(),
        first: None,
        count: 1,
        kind,
        pod: pod.map(str::to_owned),
        text: "it happened".to_owned(),
    }
}

const NOON: &str = "2026-11-23T12:00:00.000Z";

#[test]
fn kinds_and_times_are_chosen() {
    let refused = entry(NOON, Kind::Refused, Some("shop/web-0"));
    let flags = |kind: &[Kind]| Flags {
        kind: kind.to_vec(),
        since: None,
    };
    assert!(flags(&[]).wants(&refused, None));
    assert!(flags(&[Kind::Repaired, Kind::Refused]).wants(&refused, Some(NOON)));
    assert!(!flags(&[Kind::Repaired]).wants(&refused, None));
    assert!(!flags(&[]).wants(&refused, Some("2026-11-23T12:00:00.001Z")));
}

#[test]
fn pods_are_chosen_by_name_and_namespace() {
    let of_pod = entry(NOON, Kind::Refused, Some("shop/web-0"));
    for (pod, is_about) in [
        ("shop/web-0", true),
        ("web-0", true),
        ("bank/web-0", false),
        ("web", false),
        ("shop", false),
    ] {
        assert_eq!(of_pod.is_about(pod), is_about, "{pod}");
    }
    assert!(of_pod.is_in("shop") && !of_pod.is_in("bank"));
    let of_node = entry(NOON, Kind::AgentStarted, None);
    assert!(!of_node.is_about("web-0") && !of_node.is_in("shop"));
}

#[test]
fn repeated_entries_say_how_often() {
    let mut repaired = entry(NOON, Kind::Repaired, None);
    assert_eq!(repaired.cells()[2..], ["-", "it happened"]);
    repaired.count = 3;
    repaired.first = Some("2026-11-23T11:00:00.000Z".to_owned());
    assert_eq!(
        repaired.cells(),
        [
            NOON,
            "repaired",
            "-",
            "it happened (3 times since 2026-11-23T11:00:00.000Z)"
        ]
    );
}

#[test]
fn flags_are_given_on_as_words() {
    let flags = Flags {
        kind: vec![Kind::SidecarHangs, Kind::TookOver],
        since: Some(Duration::from_secs(90)),
    };
    assert_eq!(
        flags.words(),
        [
            "--kind=sidecar-hangs",
            "--kind=took-over",
            "--since=90000ms"
        ]
    );
}

#[test]
fn names_are_those_of_json() {
    for kind in [Kind::AgentStarted, Kind::PolicyRejected, Kind::Other] {
        let json = serde_json::to_value(kind).expect("JSON");
        assert_eq!(json, kind.name());
    }
    let future: Kind = serde_json::from_str("\"of-the-future\"").expect("a kind");
    assert_eq!(future, Kind::Other);
}
