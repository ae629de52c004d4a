//! Results on stdout.

use std::io::{self, Write as _};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use sidetrack_policy::text::escaped;

use crate::flags::Format;

/// Rows in columns, without lines. Cells are foreign text.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| escaped(cell)));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}

/// A title with indented lines below it; nothing if there are none.
pub fn section(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = lines
        .iter()
        .map(|line| format!("  {}", escaped(line)))
        .collect();
    format!("\n{title}:\n{}\n", lines.join("\n"))
}

/// Prints a value for programs, or a text for people.
pub fn show(format: Format, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    print(&match format {
        Format::Json => serde_json::to_string_pretty(value)?,
        Format::Yaml => serde_saphyr::to_string(value)?,
        Format::Table | Format::Wide => text(),
    })
}

/// Prints; a reader that has gone away is no failure.
pub fn print(text: &str) -> Result<()> {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
