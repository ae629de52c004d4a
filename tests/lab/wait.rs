//! The one loop that waits.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

/// The longest pause between two checks. The first ones are shorter, for the sake of what is measured.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Waits until something is so; how long that took.
pub fn until(
    timeout: Duration,
    what: &str,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<Duration> {
    let start = Instant::now();
    eventually(timeout, || {
        ensure!(is_so()?, "{what}");
        Ok(())
    })?;
    Ok(start.elapsed())
}

/// Repeats a check until it succeeds; what it found. After the timeout its own error is the answer.
pub fn eventually<T>(timeout: Duration, mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match check() {
            Ok(found) => return Ok(found),
            Err(error) if start.elapsed() >= timeout => {
                return Err(error).with_context(|| format!("not within {timeout:?}"));
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (2 * pause).min(MAX_PAUSE);
    }
}
