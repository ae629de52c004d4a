//! Results on stdout: texts for people, JSON and YAML for programs.

use std::{
    fmt::Display,
    io::{self, Write as _},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use sidetrack_policy::text::escaped_lines;

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Table,
    /// For people, with more columns where there are more
    Wide,
    /// For programs
    Json,
    /// For programs: the same content as JSON
    Yaml,
}

/// Whether the reader of stdout has gone away.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Prints; a reader that has gone away is no failure.
///
/// # Errors
/// If stdout cannot be written.
pub fn print(text: impl Display) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            CLOSED.store(true, Ordering::Relaxed);
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Prints an error or a remark of a program on stderr. A terminal obeys nothing of it, and a reader that has gone away is no
/// failure.
pub fn remark(program: &str, text: impl Display) {
    let text = escaped_lines(&text.to_string());
    let _ = writeln!(io::stderr(), "{program}: {text}");
}

/// Whether a reader has gone away: commands that print for long end then.
#[must_use]
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Prints a value if the format is one for programs; whether it is.
///
/// # Errors
/// If stdout cannot be written, or the value not be represented.
pub fn print_value(format: Format, value: &impl Serialize) -> Result<bool> {
    match format {
        Format::Json => print(escaped_lines(&serde_json::to_string_pretty(value)?))?,
        Format::Yaml => print(yaml(value)?.trim_end())?,
        Format::Table | Format::Wide => return Ok(false),
    }
    Ok(true)
}

/// Prints one of many values: a line of JSON, or a document of YAML.
///
/// # Errors
/// If stdout cannot be written, or the value not be represented.
pub fn print_one(format: Format, value: &impl Serialize) -> Result<()> {
    match format {
        Format::Yaml => print(format!("---\n{}", yaml(value)?.trim_end())),
        Format::Json | Format::Table | Format::Wide => {
            print(escaped_lines(&serde_json::to_string(value)?))
        }
    }
}

/// The text of a value, or a dash.
#[must_use]
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The YAML of what JSON shows. What a terminal would obey is escaped.
///
/// # Errors
/// If the value cannot be represented.
pub fn yaml(value: &impl Serialize) -> Result<String> {
    let value = serde_json::to_value(value)?;
    let text = serde_saphyr::to_string(&value).context("write YAML")?;
    if escaped_lines(&text) == text {
        return Ok(text);
    }
    // In a scalar without quotes an escape would be other text. JSON is YAML, too.
    Ok(escaped_lines(&serde_json::to_string_pretty(&value)?))
}

/// A table without lines, as wide as it needs to be.
pub fn table<'a>(header: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.into_iter().collect::<Vec<_>>());
    table
}
