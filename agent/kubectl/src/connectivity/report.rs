//! What came of the test.

use std::process::ExitCode;

use serde::Serialize;
use sidetrack_base::runtime::exit_code;

use super::cases;
use crate::output;

/// One promise.
#[derive(Debug, Serialize)]
pub struct Row {
    test: &'static str,
    passed: bool,
    /// What was seen, or what is wrong.
    seen: String,
}

impl Row {
    /// A promise and what came of it.
    pub fn new(test: &'static str, outcome: Result<String, String>) -> Self {
        let passed = outcome.is_ok();
        let (Ok(seen) | Err(seen)) = outcome;
        Self { test, passed, seen }
    }
}

/// All promises.
#[derive(Debug, Serialize)]
pub struct ConnectivityReport {
    namespace: String,
    tests: Vec<Row>,
    passed: usize,
    failed: usize,
}

impl ConnectivityReport {
    /// Of a run in a namespace.
    pub fn new(namespace: &str, tests: Vec<Row>) -> Self {
        debug_assert!(tests.len() > cases::count(), "nothing is omitted");
        let passed = tests.iter().filter(|row| row.passed).count();
        Self {
            namespace: namespace.to_owned(),
            failed: tests.len() - passed,
            passed,
            tests,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let rows = self.tests.iter().map(|row| {
            let result = if row.passed { "passed" } else { "FAILED" };
            vec![result.to_owned(), row.test.to_owned(), row.seen.clone()]
        });
        let table = output::table(&["RESULT", "TEST", "SEEN"], rows);
        format!("{table}\n\n{} passed, {} failed", self.passed, self.failed)
    }

    /// For scripts.
    pub fn exit_code(&self) -> ExitCode {
        exit_code(self.failed == 0)
    }
}
