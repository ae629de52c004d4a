//! Durations on command lines, in the one form that all commands take.

use std::{ops::RangeInclusive, time::Duration};

/// The longest duration. Twice that, and a time so far from now, can still be represented.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A duration such as 500ms, 10s or 2m. A plain number means seconds.
///
/// # Errors
/// If it is something else, with how to write it.
pub fn duration(text: &str) -> Result<Duration, String> {
    let given = parse(text)?;
    if given > LONGEST {
        return Err("it must be at most 366d".to_owned());
    }
    Ok(given)
}

fn parse(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|_| "write a duration such as 500ms, 10s or 2m".to_owned())
}

/// A duration greater than 0.
///
/// # Errors
/// If it is none.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(Duration::ZERO) => Err("it must be greater than 0".to_owned()),
        given => given,
    }
}

/// The time between two readings of `top`.
///
/// # Errors
/// If it is no duration, or too short or too long to be meant.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        return Ok(interval);
    }
    Err("it must be between 100ms and 1h".to_owned())
}

/// A duration within a range of seconds.
///
/// # Errors
/// If it is no duration, or not within the range.
pub fn duration_within(text: &str, seconds: RangeInclusive<u64>) -> Result<Duration, String> {
    let (least, most) = (*seconds.start(), *seconds.end());
    let duration = parse(text)?;
    if duration < Duration::from_secs(least) || duration > Duration::from_secs(most) {
        return Err(format!("it must be between {least}s and {most}s"));
    }
    Ok(duration)
}

/// A duration in the form that [`duration()`] reads: its two largest units, such as 1h2m.
#[must_use]
pub fn text(duration: Duration) -> String {
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
mod tests;
