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
mod tests;
