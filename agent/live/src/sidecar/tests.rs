use std::time::Duration;

use super::{Queue, Sidecar, SidecarCounts, Sockets};

const LISTENING: Sockets = Sockets {
    not_yet: false,
    outbound: Some(true),
    inbound: Some(true),
    dns: None,
    queue: Some(Queue {
        waiting: 0,
        oldest: None,
        is_full: false,
    }),
};

fn with_queue(waiting: u64, oldest_ms: Option<u64>, is_full: bool) -> Sidecar {
    Sidecar::of(&Sockets {
        queue: Some(Queue {
            waiting,
            oldest: oldest_ms.map(Duration::from_millis),
            is_full,
        }),
        ..LISTENING
    })
}

#[test]
fn a_sidecar_hangs_when_what_waits_is_old() {
    assert_eq!(with_queue(0, None, false), Sidecar::Up);
    // It is busy.
    assert_eq!(with_queue(50, Some(2_999), false), Sidecar::Up);
    // A burst fills the queue for a moment.
    assert_eq!(with_queue(129, Some(20), true), Sidecar::Up);
    let hangs = |waiting, seconds| Sidecar::Hangs { waiting, seconds };
    assert_eq!(with_queue(1, Some(3_000), false), hangs(1, 3));
    assert_eq!(with_queue(272, Some(12_700), true), hangs(272, 12));
    // Nothing is known of their age, as with SYN cookies.
    assert_eq!(with_queue(129, None, true), hangs(129, 0));
    assert_eq!(with_queue(50, None, false), Sidecar::Up);
}

#[test]
fn who_hangs_on_one_port_hangs() {
    let queue = Some(Queue {
        waiting: 3,
        oldest: Some(Duration::from_secs(9)),
        is_full: false,
    });
    for (outbound, inbound) in [
        (Some(true), Some(false)),
        (None, None),
        (Some(false), Some(true)),
    ] {
        let sockets = Sockets {
            outbound,
            inbound,
            dns: None,
            queue,
            not_yet: false,
        };
        assert_eq!(Sidecar::of(&sockets).word(), "hangs", "{sockets:?}");
    }
}

#[test]
fn words_for_each_state() {
    let [yes, no] = [Some(true), Some(false)];
    for (not_yet, outbound, inbound, expected) in [
        (false, yes, yes, "up"),
        (false, no, no, "down"),
        (false, yes, no, "out"),
        (false, no, yes, "in"),
        (false, None, yes, "unknown"),
        (false, yes, None, "unknown"),
        (true, no, no, "not yet"),
        (true, None, no, "not yet"),
    ] {
        let sockets = Sockets {
            not_yet,
            outbound,
            inbound,
            ..LISTENING
        };
        assert_eq!(Sidecar::of(&sockets).word(), expected, "{sockets:?}");
    }
}

#[test]
fn it_is_unknown_whether_it_accepts() {
    let sockets = Sockets {
        queue: None,
        ..LISTENING
    };
    assert_eq!(Sidecar::of(&sockets), Sidecar::Listens);
}

#[test]
fn a_state_of_another_version_is_unknown() {
    let read = |text: &str| serde_json::from_str::<Sidecar>(text).expect(text);
    assert_eq!(read(r#"{"state":"sleeps"}"#), Sidecar::Unknown);
    let hangs = Sidecar::Hangs {
        waiting: 7,
        seconds: 4,
    };
    assert_eq!(read(&serde_json::to_string(&hangs).expect("JSON")), hangs);
}

#[test]
fn counts_name_what_is_wrong() {
    let all = [
        Sidecar::Up,
        Sidecar::Listens,
        Sidecar::InboundOnly,
        Sidecar::NotYet,
        Sidecar::Hangs {
            waiting: 272,
            seconds: 12,
        },
    ];
    let counts = SidecarCounts::of(all.iter());
    assert_eq!(
        counts.to_string(),
        "2 up, 1 down, 1 hang (272 connections wait), 1 not yet there"
    );
    assert!(!counts.is_fine());
    assert!(!SidecarCounts::of(all[2..3].iter()).is_fine());
    assert!(SidecarCounts::of(all[..2].iter()).is_fine());
}

#[test]
fn a_sidecar_without_its_dns_port_is_down_for_lookups() {
    let with = |outbound, inbound, dns| {
        Sidecar::of(&Sockets {
            outbound,
            inbound,
            dns,
            ..LISTENING
        })
    };
    for inbound in [Some(true), Some(false)] {
        let sidecar = with(Some(true), inbound, Some(false));
        assert_eq!(sidecar, Sidecar::NoDns);
        let remark = sidecar.remark().expect("a remark");
        assert!(remark.contains("DNS port"), "{remark}");
    }
    let yes = Some(true);
    assert_eq!(with(yes, yes, yes), Sidecar::Up);
    // It does not run at all, or has not been looked at.
    assert_eq!(with(Some(false), Some(false), Some(false)), Sidecar::Down);
    assert_eq!(with(yes, yes, None), Sidecar::Up);
    let counts = SidecarCounts::of([Sidecar::NoDns].iter());
    assert_eq!((counts.down, counts.is_fine()), (1, false));
}
