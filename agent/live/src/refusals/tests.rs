use super::{LastRefusal, RECENT};
use crate::Sidecar;

fn last(reason: &str, seconds_ago: Option<u64>) -> LastRefusal {
    LastRefusal {
        reason: reason.to_owned(),
        seconds_ago,
    }
}

#[test]
fn refusals_of_a_start_are_no_remark_for_ever() {
    let said = |it: &LastRefusal, sidecar| it.remark(sidecar, "why");
    for reason in ["no-listener", "sidecar-refused"] {
        let (old, new) = (last(reason, Some(RECENT + 1)), last(reason, Some(3)));
        assert_eq!(said(&old, &Sidecar::Up), None);
        assert!(said(&old, &Sidecar::Down).is_some());
        assert!(said(&last(reason, None), &Sidecar::Up).is_some());
        assert_eq!(
            said(&new, &Sidecar::Up).unwrap(),
            format!("last refused 3s ago: {reason}, see `why`")
        );
    }
    assert!(said(&last("no-route", Some(RECENT + 1)), &Sidecar::Up).is_some());
}
