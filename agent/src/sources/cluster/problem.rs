//! What is wrong with a watch, and how often the log has it.
//!
//! While the API server is away each attempt may fail in another way: refused, no answer in time, refused again. The
//! log has each way once, and a bounded number of them. The status has the latest.

use tokio::time::Instant;
use tracing::{debug, error};

/// 401: the status of an answer to a token that is void, or that the API server cannot check.
pub(super) const UNAUTHORIZED: u16 = 401;

/// The most lines of one outage in the log, for each watch.
const LOGGED: usize = 3;

/// A watch that fails, until it works again.
#[derive(Debug)]
pub(super) struct Problem {
    since: Instant,
    text: String,
    /// The status of the answer, 0 if there was none.
    code: u16,
    logged: Vec<String>,
}

impl Problem {
    fn now() -> Self {
        Self {
            since: Instant::now(),
            text: String::new(),
            code: 0,
            logged: Vec::new(),
        }
    }

    /// When the first request failed.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// The latest.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the API server does not accept the agent's token.
    pub(super) fn is_refused(&self) -> bool {
        self.code == UNAUTHORIZED
    }

    /// Takes note of how a watch fails now.
    pub(super) fn change(problem: &mut Option<Self>, text: String, code: u16) {
        let problem = problem.get_or_insert_with(Self::now);
        problem.code = code;
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
