//! What an event says.

use bytemuck::Zeroable as _;
use sidetrack_common::{
    addr::Addr,
    event::{Event, EventKind},
    policy::NO_ID,
    rule::Rule,
};

use super::{Clocks, described, is_refusal};

fn event() -> Event {
    Event {
        destination: Addr::v4([10, 0, 0, 1]),
        destination_port: 80,
        kind: EventKind::Outbound as u16,
        rule: Rule::AllOutbound as u32,
        ..Event::zeroed()
    }
}

#[test]
fn what_is_not_known_is_omitted() {
    let shown = described(&event(), "a/b".to_owned(), &Clocks::now());
    assert_eq!(shown.verdict, "untouched");
    assert_eq!(shown.destination, "10.0.0.1:80");
    assert_eq!(
        (
            shown.source,
            shown.port,
            shown.errno,
            shown.process,
            shown.socket
        ),
        (None, None, None, None, None)
    );
}

#[test]
fn verdicts_follow_what_happened() {
    let verdict = |event: Event| described(&event, String::new(), &Clocks::now()).verdict;
    let redirect = Event {
        capture_port: 15001,
        ..event()
    };
    assert_eq!(verdict(redirect), "redirect");
    let refused = Event {
        errno: 111,
        rule: Rule::NoListener as u32,
        ..event()
    };
    assert_eq!(verdict(refused), "refuse");
    let failed = Event {
        kind: EventKind::Outcome as u16,
        rule: Rule::SidecarRefused as u32,
        errno: 111,
        ..redirect
    };
    assert_eq!(verdict(failed), "failed");
    let given_up = Event {
        kind: EventKind::Outcome as u16,
        rule: Rule::GivenUp as u32,
        ..redirect
    };
    assert_eq!(verdict(given_up), "given-up");
}

#[test]
fn a_hostile_name_cannot_write_to_the_terminal() {
    let mut comm = [0; 16];
    comm[..6].copy_from_slice(b"\x1b[2Jok");
    let of_process = Event {
        pid: 7,
        uid: 1000,
        gid: NO_ID,
        comm,
        ..event()
    };
    let shown = described(&of_process, String::new(), &Clocks::now());
    let process = shown.process.unwrap();
    assert_eq!(process.name, "\\u{1b}[2Jok");
    assert_eq!((process.uid, process.gid), (Some(1000), None));
}

#[test]
fn time_runs_backwards_from_now() {
    let clocks = Clocks::now();
    let then = Event {
        at: clocks.boot - 60_000_000_000,
        ..event()
    };
    let shown = described(&then, String::new(), &clocks);
    let at = humantime::parse_rfc3339(&shown.time).unwrap();
    let ago = clocks.wall.duration_since(at).unwrap();
    assert_eq!(ago.as_secs(), 60);
    assert_eq!(clocks.since(then.at).as_secs(), 60);
    assert_eq!(clocks.since(u64::MAX).as_secs(), 0);
}

#[test]
fn refusals_and_decisions_are_distinguished() {
    assert!(is_refusal("sidecar-refused"));
    assert!(is_refusal("no-route"));
    assert!(!is_refusal("given-up"));
    assert!(!is_refusal("out-all"));
    assert!(!is_refusal("nothing"));
}
