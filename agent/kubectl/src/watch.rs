//! `-w`, as kubectl has it: a list, then the rows that are new or differ.

use std::{collections::HashMap, process::ExitCode, time::Duration};

use anyhow::Result;
use serde_json::Value;
use sidetrack_live::output::is_closed;
use sidetrack_policy::text::{LONGEST_NAME, escaped};

use crate::{flags::Format, output};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// Between two columns.
const GAP: &str = "  ";

/// What is listed at a time.
#[derive(Debug)]
pub struct List {
    /// Names of the columns.
    pub header: Vec<&'static str>,
    /// A row each.
    pub rows: Vec<Listed>,
    /// Whether every agent has answered.
    pub is_whole: bool,
}

/// A row.
#[derive(Debug)]
pub struct Listed {
    /// For people.
    pub cells: Vec<String>,
    /// For programs.
    pub value: Value,
    /// What it is of.
    pub id: String,
    /// It is shown again when this has changed.
    pub key: String,
}

/// Shows a list and what changes in it, until Ctrl-C or until the reader of stdout has gone away.
///
/// # Errors
/// If the first list cannot be read, or the output cannot be written.
pub async fn watch(format: Format, read: impl AsyncFn() -> Result<List>) -> Result<ExitCode> {
    let mut list = read().await?;
    let mut widths: Vec<usize> = list.header.iter().map(|name| name.len()).collect();
    let cells = list.rows.iter().map(|row| &row.cells);
    for (column, cell) in cells.flat_map(|cells| cells.iter().enumerate()) {
        widths[column] = widths[column].max(cell.chars().count().min(LONGEST_NAME));
    }
    if matches!(format, Format::Table | Format::Wide) {
        let header: Vec<String> = list.header.iter().map(|&name| name.to_owned()).collect();
        output::print(&line(&header, &widths))?;
    }
    let mut shown = HashMap::new();
    loop {
        let is_new = |row: &&Listed| shown.get(&row.id) != Some(&row.key);
        for row in list.rows.iter().filter(is_new) {
            match format {
                Format::Table | Format::Wide => output::print(&line(&row.cells, &widths))?,
                Format::Json => output::print_one(format, &row.value)?,
                // Items of one list.
                Format::Yaml => output::show(format, &[&row.value], String::new)?,
            }
        }
        // What an agent that is silent now has listed before is not new when it comes again.
        if list.is_whole {
            shown.clear();
        }
        let rows = list.rows.into_iter();
        shown.extend(rows.map(|row| (row.id, row.key)));
        list = loop {
            tokio::time::sleep(INTERVAL).await;
            if is_closed() {
                return Ok(ExitCode::SUCCESS);
            }
            match read().await {
                Ok(list) => break list,
                Err(error) => output::remark(format!("{error:#}")),
            }
        };
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths);
    let padded = cells.map(|(cell, &width)| format!("{:width$}", escaped(cell)));
    padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
}
