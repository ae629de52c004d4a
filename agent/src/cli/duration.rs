//! Durations on the command line.

use std::{ops::RangeInclusive, time::Duration};

/// A duration such as 500ms, 10s or 2m. A plain number means seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a duration such as 500ms, 10s or 2m"))
}

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{duration, duration_within};

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
