//! The table of values in the chart's README, made from the comments of values.yaml.

use std::{fmt::Write as _, fs};

use anyhow::{Context as _, Result, bail};

use crate::run::root;

const VALUES: &str = "deploy/chart/values.yaml";
const README: &str = "deploy/chart/README.md";

/// Between these the table stands.
const BEGIN: &str = "<!-- begin of values: `cargo xtask values` writes them -->\n";
const END: &str = "<!-- end of values -->\n";

/// Fails if the table is not that of the values.
pub fn check() -> Result<()> {
    let (old, new) = readme()?;
    if old != new {
        bail!("{README} does not have the values of {VALUES}: run `cargo xtask values`");
    }
    Ok(())
}

/// Writes the table.
pub fn write() -> Result<()> {
    let (_, new) = readme()?;
    fs::write(root().join(README), new).with_context(|| format!("write {README}"))
}

/// The README as it is, and as it should be.
fn readme() -> Result<(String, String)> {
    let read =
        |path: &str| fs::read_to_string(root().join(path)).with_context(|| format!("read {path}"));
    let old = read(README)?;
    let (before, rest) = old.split_once(BEGIN).context("no begin of values")?;
    let (_, after) = rest.split_once(END).context("no end of values")?;
    let table = table(&rows(&read(VALUES)?)?);
    let new = format!("{before}{BEGIN}\n{table}\n{END}{after}");
    Ok((old, new))
}

/// A value: its path, what it is without settings, and its comment.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    path: String,
    default: String,
    comment: String,
}

/// The values in their order. Of a group that has a comment there is a row without a default.
///
/// Understands what the file needs: nested mappings, values on one line, lists below their key.
fn rows(text: &str) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    // The keys that lead to the current line, with their indentation.
    let mut path: Vec<(usize, &str)> = Vec::new();
    let mut comment = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if content.is_empty() {
            comment.clear();
        } else if let Some(text) = content.strip_prefix('#') {
            comment.push(text.trim());
        } else if content.starts_with("- ") {
            let row = rows.last_mut().context("a list without a key")?;
            let separator = if row.default.is_empty() { "" } else { ", " };
            write!(row.default, "{separator}{content}")?;
        } else {
            let (key, value) = content
                .split_once(':')
                .with_context(|| format!("not understood: {line}"))?;
            path.retain(|(outer, _)| *outer < indent);
            path.push((indent, key));
            let keys: Vec<&str> = path.iter().map(|(_, key)| *key).collect();
            rows.push(Row {
                path: keys.join("."),
                default: value.trim().to_owned(),
                comment: comment.join(" "),
            });
            comment.clear();
        }
    }
    rows.retain(|row| !row.default.is_empty() || !row.comment.is_empty());
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from("| value | default | what it does |\n|---|---|---|\n");
    for row in rows {
        let cell = |text: &str| text.replace('|', "\\|");
        let default = if row.default.is_empty() {
            String::new()
        } else {
            format!("`{}`", cell(&row.default))
        };
        let comment = cell(&row.comment);
        text += &format!("| `{}` | {default} | {comment} |\n", row.path);
    }
    text
}

#[cfg(test)]
mod tests;
