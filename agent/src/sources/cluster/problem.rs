//! What is wrong with a watch, and how often the log has it.
//!
//! While the API server is away each attempt may fail in another way: refused, no answer in time, refused again. The
//! log has each way once, and a bounded number of them. The status has the latest.

use tracing::{debug, error};

/// The most lines of one outage in the log, for each watch.
const LOGGED: usize = 3;

/// A watch that fails, until it works again.
#[derive(Debug, Default)]
pub(super) struct Problem {
    text: String,
    logged: Vec<String>,
}

impl Problem {
    /// The latest.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Takes note of how a watch fails now.
    pub(super) fn change(problem: &mut Option<Self>, text: String) {
        let problem = problem.get_or_insert_default();
        if problem.is_to_be_logged(&text) {
            error!("{text}");
            problem.logged.push(text.clone());
        } else {
            debug!("{text}");
        }
        problem.text = text;
    }

    fn is_to_be_logged(&self, text: &str) -> bool {
        self.logged.len() < LOGGED && !self.logged.iter().any(|logged| logged == text)
    }
}

#[cfg(test)]
mod tests;
