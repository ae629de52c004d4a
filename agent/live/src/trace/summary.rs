//! What a trace has shown.

use std::collections::BTreeMap;

use sidetrack_policy::text::counted;

use super::TraceEvent;

/// A line in place of connections that came too fast.
#[must_use]
pub fn missing(count: u64) -> String {
    let (are, they) = if count == 1 {
        ("is", "it")
    } else {
        ("are", "they")
    };
    let connections = counted(count, "connection");
    format!("... {connections} {are} missing here: {they} came faster than {they} could be read")
}

/// What was shown, and what was not.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many connections were shown.
    pub events: u64,
    by_verdict: BTreeMap<String, u64>,
    lost: u64,
}

impl Summary {
    /// A connection was shown.
    pub fn add(&mut self, event: &TraceEvent) {
        self.events += 1;
        *self.by_verdict.entry(event.verdict.clone()).or_default() += 1;
    }

    /// That many are missing.
    pub fn add_lost(&mut self, count: u64) {
        self.lost += count;
    }

    /// One line.
    #[must_use]
    pub fn text(&self) -> String {
        let verdicts: Vec<String> = self
            .by_verdict
            .iter()
            .map(|(verdict, count)| format!("{count} {verdict}"))
            .collect();
        let verdicts = if verdicts.is_empty() {
            String::new()
        } else {
            format!(": {}", verdicts.join(", "))
        };
        let lost = match self.lost {
            0 => "none missing".to_owned(),
            lost => format!("{lost} missing"),
        };
        format!("{}{verdicts}; {lost}", counted(self.events, "event"))
    }
}

#[cfg(test)]
mod tests;
