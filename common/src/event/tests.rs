use super::{COMM_LEN, Event, EventKind};
use crate::addr::Addr;

#[test]
fn kinds_lead_back_from_their_numbers() {
    for kind in [EventKind::Outbound, EventKind::Inbound, EventKind::Outcome] {
        assert_eq!(EventKind::from_number(kind as u16), Some(kind));
    }
    for number in [0, 4, u16::MAX] {
        assert_eq!(EventKind::from_number(number), None);
    }
}

#[test]
fn an_event_is_complete_if_it_was_written_once_and_whole() {
    for (at, written, expected) in [(7, 7, true), (7, 0, false), (7, 8, false), (0, 0, false)] {
        let event = Event {
            at,
            netns: 1,
            cookie: 0,
            source: Addr::UNSPECIFIED,
            destination: Addr::UNSPECIFIED,
            source_port: 0,
            destination_port: 0,
            capture_port: 0,
            kind: EventKind::Inbound as u16,
            rule: 0,
            index: 0,
            errno: 0,
            pid: 0,
            uid: 0,
            gid: 0,
            comm: [0; COMM_LEN],
            written,
        };
        assert_eq!(event.is_complete(), expected, "{at} {written}");
    }
}
