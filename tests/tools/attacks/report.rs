//! One line for each attack.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;

/// What was seen during an attack, in words.
pub type Seen = Vec<String>;

/// Counts what held.
#[derive(Debug)]
pub struct Report {
    start: Instant,
    passed: usize,
    failed: usize,
}

impl Report {
    /// Begins.
    pub fn begin() -> Self {
        Self {
            start: Instant::now(),
            passed: 0,
            failed: 0,
        }
    }

    /// One attack, and what became of the others meanwhile.
    pub fn add(&mut self, name: &str, result: Result<Seen>) {
        match result {
            Ok(seen) => {
                self.passed += 1;
                println!("  ok      {name}: {}", seen.join(", "));
            }
            Err(error) => {
                self.failed += 1;
                println!("  FAILED  {name}: {error:#}");
            }
        }
    }

    /// The last line.
    pub fn end(self) -> ExitCode {
        let Self {
            start,
            passed,
            failed,
        } = self;
        println!("\nin {} s", start.elapsed().as_secs());
        println!("{passed} passed, {failed} failed");
        ExitCode::from(u8::from(failed > 0 || passed == 0))
    }
}

/// As milliseconds.
pub fn millis(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

/// As mebibytes.
pub fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
