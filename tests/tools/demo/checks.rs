//! Claims and whether they held.

use std::{fmt::Display, process::ExitCode};

/// The claims so far.
#[derive(Debug, Default)]
pub struct Checks {
    passed: usize,
    failed: usize,
}

impl Checks {
    /// Records a claim; an error holds what was seen instead.
    pub fn record(&mut self, claim: &str, held: Result<(), impl Display>) {
        match held {
            Ok(()) => {
                self.passed += 1;
                println!("  ok    {claim}");
            }
            Err(seen) => {
                self.failed += 1;
                println!("  FAIL  {claim}: {seen}");
            }
        }
    }

    /// Records that a value is as expected.
    pub fn equal(&mut self, claim: &str, seen: &str, expected: &str) {
        let held = if seen == expected {
            Ok(())
        } else {
            Err(format!("{seen:?} instead of {expected:?}"))
        };
        self.record(&format!("{claim} = {expected}"), held);
    }

    /// Prints the sum, which decides the exit code.
    pub fn close(self) -> ExitCode {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 && self.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
