//! Tables, JSON and YAML on stdout, remarks on stderr.

use std::{fmt::Display, io, time::Duration};

use anyhow::Result;
use comfy_table::{ColumnConstraint, ContentArrangement, Table};
use sidetrack_base::duration;
use sidetrack_live::output;
use terminal_size::{Width, terminal_size_of};

pub use sidetrack_live::output::{is_closed, or_dash, print, print_one, print_value, table};

/// Narrower than this a last column is not wrapped: the terminal breaks the lines where they end.
const NARROWEST: usize = 20;

/// Prints an error or a remark on stderr. A reader that has gone away is no failure.
pub fn remark(text: impl Display) {
    output::remark("sidetrack", text);
}

/// Prints a table without the blanks around its lines. On a terminal its last column wraps at the
/// terminal's width.
pub fn print_table(table: &Table) -> Result<()> {
    print(table_text(table, terminal_width()))
}

/// The width of the terminal that stdout is, if it is one.
pub fn terminal_width() -> Option<usize> {
    terminal_size_of(io::stdout()).map(|(Width(width), _)| width.into())
}

/// The table for a terminal of this width, or for a file.
pub fn table_text(table: &Table, terminal: Option<usize>) -> String {
    lines(table, terminal).join("\n")
}

/// The table's lines, for a terminal of this width or for a file.
fn lines(table: &Table, terminal: Option<usize>) -> Vec<String> {
    let mut table = table.clone();
    if let Some(width) = terminal {
        fit(&mut table, width);
    }
    let lines = table.lines();
    // Each begins with a blank as well.
    let lines = lines.map(|line| {
        line.strip_prefix(' ')
            .unwrap_or(&line)
            .trim_end()
            .to_owned()
    });
    lines.collect()
}

/// Wraps the last column where the table ends at this width.
fn fit(table: &mut Table, width: usize) {
    let widths = table.column_max_content_widths();
    let Some((_, others)) = widths.split_last() else {
        return;
    };
    // A blank on both sides of each column.
    let used: usize = others.iter().map(|width| usize::from(*width) + 2).sum();
    let Some(room) = width
        .checked_sub(used + 2)
        .filter(|room| *room >= NARROWEST)
    else {
        return;
    };
    if let (Some(column), Ok(room)) = (table.column_iter_mut().last(), u16::try_from(room)) {
        column.set_constraint(ColumnConstraint::UpperBoundary(comfy_table::Width::Fixed(
            room,
        )));
    }
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(width).unwrap_or(u16::MAX));
    for column in table.column_iter_mut().take(widths.len() - 1) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
}

/// A time span for people: two units at most.
pub fn seconds(seconds: u64) -> String {
    duration::text(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests;
