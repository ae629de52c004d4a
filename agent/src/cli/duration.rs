//! Durations on the command line.

use std::{ops::RangeInclusive, time::Duration};

pub(super) use sidetrack_live::duration::duration;

/// A duration within a range of seconds.
pub(super) fn duration_within(
    text: &str,
    seconds: RangeInclusive<u64>,
) -> Result<Duration, String> {
    let (least, most) = (*seconds.start(), *seconds.end());
    let duration = duration(text)?;
    if duration < Duration::from_secs(least) || duration > Duration::from_secs(most) {
        return Err(format!("it must be between {least}s and {most}s"));
    }
    Ok(duration)
}

/// A duration in the form that [`duration`] reads: its two largest units, such as 1h2m.
pub(super) fn text(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".to_owned();
    }
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let seconds = duration.as_secs();
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (u64::from(duration.subsec_millis()), "ms"),
    ];
    let parts = units.iter().skip_while(|(count, _)| *count == 0).take(2);
    let parts = parts.filter(|(count, _)| *count > 0);
    parts
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{duration, duration_within, text};

    #[test]
    fn the_same_form_in_both_directions() {
        for form in [
            "0s", "1ms", "999ms", "1s", "1s500ms", "10s", "1m", "1m1s", "59m59s", "1h", "23h59m",
            "1d", "45d2h",
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
        for text in ["", "-1", "soon", "10 parsecs", "s"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn ranges() {
        assert_eq!(duration_within("1", 1..=9), Ok(Duration::from_secs(1)));
        assert_eq!(duration_within("9s", 1..=9), Ok(Duration::from_secs(9)));
        for text in ["0", "999ms", "9001ms", "10"] {
            assert!(duration_within(text, 1..=9).is_err(), "{text:?}");
        }
    }
}
