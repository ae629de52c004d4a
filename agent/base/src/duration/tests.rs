use std::time::Duration;

use super::{duration, duration_within, interval, positive_duration, text};

#[test]
fn the_same_form_in_both_directions() {
    for form in [
        "0s", "1ms", "999ms", "1s", "1s500ms", "10s", "1m", "1m1s", "59m59s", "1h", "23h59m", "1d",
        "45d2h",
    ] {
        assert_eq!(text(duration(form).expect(form)), form);
    }
    assert_eq!(text(Duration::from_secs(3600 + 1)), "1h");
    assert_eq!(text(Duration::from_secs(86_400 + 60)), "1d");
}

#[test]
fn units_and_plain_seconds() {
    assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
    assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
    assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
    assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
    for text in [
        "",
        "-1",
        "soon",
        "10 parsecs",
        "s",
        "367d",
        "18446744073709551615",
    ] {
        assert!(duration(text).is_err(), "{text:?}");
    }
    assert!(positive_duration("0").is_err());
}

#[test]
fn ranges() {
    assert_eq!(duration_within("1", 1..=9), Ok(Duration::from_secs(1)));
    assert_eq!(duration_within("9s", 1..=9), Ok(Duration::from_secs(9)));
    for text in ["0", "999ms", "9001ms", "10"] {
        assert!(duration_within(text, 1..=9).is_err(), "{text:?}");
    }
}

#[test]
fn intervals_have_bounds() {
    assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
    assert_eq!(interval("1h"), Ok(Duration::from_secs(3600)));
    for text in ["0", "99ms", "61m", "soon"] {
        assert!(interval(text).is_err(), "{text}");
    }
}
