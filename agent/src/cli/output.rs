//! Tables and JSON on stdout.

use std::{
    io::{self, Write as _},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// A table without lines, as wide as it needs to be.
pub fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    table
}

/// Whether the reader of stdout has gone away.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Prints; a reader that has gone away is no failure.
pub fn print(text: impl std::fmt::Display) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            CLOSED.store(true, Ordering::Relaxed);
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Whether a reader has gone away: commands that print for long end then.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Prints a table without the blanks at its lines' ends.
pub fn print_table(table: &Table) -> Result<()> {
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    print(lines.join("\n"))
}

/// Prints JSON.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(serde_json::to_string_pretty(value)?)
}

/// A time span for people: two units at most.
pub fn seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86400, seconds / 3600 % 24),
    }
}
