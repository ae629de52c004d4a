//! Results on stdout.

use std::{fmt::Display, mem};

use anyhow::Result;
use parking_lot::Mutex;
use serde::Serialize;
use sidetrack_live::output::{self, print_value};
pub use sidetrack_live::output::{is_closed, or_dash, print_one};
use sidetrack_policy::text::escaped;

use crate::flags::Format;

/// The most lines of one kind for people.
pub const SHOWN: usize = 10;

/// What names every agent that does not answer.
pub const ALL_SILENT: &str = "kubectl sidetrack status -o json";

/// Rows in columns, without lines. Cells are foreign text.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = output::table(header.iter().copied());
    for row in rows {
        table.add_row(row.iter().map(|cell| shown(cell)));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}

/// An agent's text, which may advise to ask its node's command `why`: here that is the plugin's.
fn shown(text: &str) -> String {
    escaped(text).replace("see `sidetrack why", "see `kubectl sidetrack why")
}

/// A title with indented lines below it; nothing if there are none.
pub fn section(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = lines
        .iter()
        .map(|line| format!("  {}", shown(line)))
        .collect();
    format!("\n{title}:\n{}\n", lines.join("\n"))
}

/// The first lines, and how many more there are; `all` is where they are.
pub fn first(mut lines: Vec<String>, all: &str) -> Vec<String> {
    if lines.len() > SHOWN {
        let more = lines.split_off(SHOWN).len();
        lines.push(format!("and {more} more: {all}"));
    }
    lines
}

/// Prints an error or a remark on stderr.
pub fn remark(text: impl Display) {
    output::remark("kubectl-sidetrack", text);
}

/// What is missing in a result, on stderr: how much in the title, and the first lines. Nothing if there are none, or if it
/// is what was said last.
pub fn warn(title: &str, lines: Vec<String>, all: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let text = section(title, &first(lines, all));
    let last = mem::replace(&mut *LAST.lock(), text.clone());
    if !text.is_empty() && text != last {
        remark(text.trim());
    }
}

/// Says on stderr that a list is empty, of one namespace or of all.
pub fn nothing(what: &str, namespace: Option<&str>) {
    let place = namespace.map_or_else(String::new, |it| format!(" in namespace {it}"));
    remark(format!("no {what}{place}"));
}

/// Prints a value for programs, or a text for people.
pub fn show(format: Format, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    if print_value(format, value)? {
        return Ok(());
    }
    print(&text())
}

/// Prints; a reader that has gone away is no failure.
pub fn print(text: &str) -> Result<()> {
    output::print(text.trim_end())
}

#[cfg(test)]
mod tests;
