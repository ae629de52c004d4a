//! Durations on command lines, in the one form that all commands take.

use std::time::Duration;

/// A duration such as 500ms, 10s or 2m. A plain number means seconds.
///
/// # Errors
/// If it is something else, with how to write it.
pub fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a duration such as 500ms, 10s or 2m"))
}

/// The time between two readings of `top`.
///
/// # Errors
/// If it is no duration, or too short or too long to be meant.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        return Ok(interval);
    }
    Err("it must be between 100ms and 1h".to_owned())
}

#[cfg(test)]
mod tests;
