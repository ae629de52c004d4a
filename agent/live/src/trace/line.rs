//! A connection as one line for people.

use sidetrack_policy::text::LONGEST_NAME;

use super::TraceEvent;
use crate::output::or_dash;

/// Lines with the pod, in columns. What pods will come is not known: the pod's column grows with the longest name.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    pod: usize,
}

impl Default for Columns {
    /// With room for a pod of a Deployment, such as `shop/checkout-7d9c5b8f6d-x2x4z`.
    fn default() -> Self {
        Self { pod: 32 }
    }
}

impl Columns {
    /// The headings.
    #[must_use]
    pub fn header(&self) -> String {
        self.cells("TIME (UTC)", "POD", "VERDICT", "RULE", "CONNECTION")
    }

    /// A connection.
    pub fn line(&mut self, event: &TraceEvent) -> String {
        self.pod = self.pod.max(event.pod.chars().count().min(LONGEST_NAME));
        self.cells(
            time(event),
            &event.pod,
            &verdict(event),
            &event.rule,
            &connection(event),
        )
    }

    fn cells(&self, time: &str, pod: &str, verdict: &str, rule: &str, connection: &str) -> String {
        let width = self.pod;
        format!("{time:<16} {pod:<width$} {verdict:<15} {rule:<23} {connection}")
    }
}

/// Without the pod, for a view that shows one pod. Its time has milliseconds, and what matters less is at the end.
#[must_use]
pub fn line_of_one_pod(event: &TraceEvent) -> String {
    let time = time(event);
    let (from, owner) = process(event).unwrap_or_default();
    let text = format!(
        "{} {:<14} {:<17} {from}{} {owner}",
        time.get(..12).unwrap_or(time),
        verdict(event),
        event.rule,
        ends(event),
    );
    text.trim_end().to_owned()
}

fn time(event: &TraceEvent) -> &str {
    event.time.get(11..26).unwrap_or(&event.time)
}

fn verdict(event: &TraceEvent) -> String {
    match event.port {
        Some(port) if event.verdict == "redirect" => format!("redirect {port}"),
        _ => event.verdict.clone(),
    }
}

/// Who connects where, and what the caller gets if it fails.
fn connection(event: &TraceEvent) -> String {
    let from = process(event).map(|(process, owner)| format!("{process} {owner} "));
    format!("{}{}", from.unwrap_or_default(), ends(event))
}

/// The process, and its user and group.
fn process(event: &TraceEvent) -> Option<(String, String)> {
    let process = event.process.as_ref()?;
    let owner = format!("{}:{}", or_dash(process.uid), or_dash(process.gid));
    Some((format!("{}[{}]", process.name, process.pid), owner))
}

/// From where to where, and the error.
fn ends(event: &TraceEvent) -> String {
    let error = event.errno.map(crate::errno_text);
    let error = error.map(|text| format!(": {text}"));
    let arrow = if event.direction == "inbound" {
        "=>"
    } else {
        "->"
    };
    format!(
        "{} {arrow} {}{}",
        event.source.as_deref().unwrap_or_default(),
        event.destination,
        error.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests;
