use kube::core::Status;

use super::{FIRST_PAUSE, Failures, MAX_AWAY, MAX_ERRORS};

const AWAY: kube::Error = kube::Error::LinesCodecMaxLineLengthExceeded;

fn answer(code: u16) -> kube::Error {
    kube::Error::Api(Box::new(Status::failure("no", "No").with_code(code)))
}

#[test]
fn pauses_grow_and_end() {
    for code in [400, 403, 404, 422] {
        assert_eq!(
            Failures::default().pause_after(&answer(code)),
            None,
            "{code}"
        );
    }
    for code in [429, 500, 503] {
        let mut failures = Failures::default();
        for pause in 0..MAX_ERRORS - 1 {
            let wanted = FIRST_PAUSE * 2_u32.pow(pause);
            assert_eq!(failures.pause_after(&answer(code)), Some(wanted), "{code}");
        }
        assert_eq!(failures.pause_after(&answer(code)), None, "{code}");
    }
}

#[test]
fn a_server_that_was_away_has_all_its_chances() {
    let mut failures = Failures::default();
    let mut last = None;
    for _ in 1..MAX_AWAY {
        last = failures.pause_after(&AWAY);
    }
    assert_eq!(last, Some(FIRST_PAUSE * 32));
    assert_eq!(failures.pause_after(&answer(503)), Some(FIRST_PAUSE));
    assert_eq!(failures.pause_after(&AWAY), None);
}
