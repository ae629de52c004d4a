//! The printed result: a Markdown table with a column for each kernel, as in docs/kernels.md.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::json;

use super::{Row, archive::Archive};

/// The newest kernel of each series.
pub fn kernels(archive: &Archive) -> String {
    let mut series = BTreeMap::new();
    for kernel in archive.kernels.iter().rev() {
        let (major, minor, _) = kernel.number;
        series.insert((major, minor), kernel);
    }
    let mut text: String = series
        .iter()
        .map(|((major, minor), kernel)| {
            format!(
                "{:<8} {:<34} {}\n",
                format!("{major}.{minor}"),
                kernel.release,
                kernel.suite
            )
        })
        .collect();
    for (suite, problem) in &archive.unread {
        text += &format!("not read: {suite}: {problem}\n");
    }
    text
}

/// The table, and below it the problems.
pub fn results(rows: &[Row]) -> String {
    let mut lines = vec![
        line("", rows.iter().map(title)),
        line("---", rows.iter().map(|_| "---".to_owned())),
        line(
            "package",
            rows.iter().map(|row| match &row.kernel {
                Some(kernel) => kernel.version.clone(),
                None if row.unavailable.is_some() => "not available".to_owned(),
                None => row.requested.clone(),
            }),
        ),
        line("`sidetrack doctor`", rows.iter().map(doctor)),
    ];
    let groups: BTreeSet<&String> = rows
        .iter()
        .flat_map(|row| row.session.groups.keys())
        .collect();
    for group in groups {
        lines.push(line(group, rows.iter().map(|row| cell(row, group))));
    }
    let mut text = lines.join("\n") + "\n";
    for row in rows {
        let name = title(row);
        if let Some(reason) = &row.unavailable {
            text += &format!("\n{name}: not available: {reason}\n");
        }
        if row.session.refused() {
            text += &format!(
                "\n{name}: output of the agent: {}\n",
                row.session.agent.trim()
            );
        }
        for (reason, count) in &row.session.skipped {
            text += &format!("\n{name}: {count} skipped, {reason}\n");
        }
        if !row.session.lost.is_empty() {
            text += &format!("\n{name}: without {}\n", row.session.lost.join(", "));
        }
        for problem in &row.problems {
            text += &format!("\n{name}: {problem}\n");
        }
    }
    text
}

/// The same as JSON.
pub fn json(rows: &[Row]) -> Result<String> {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "requested": row.requested,
                "package": row.kernel.as_ref().map(|kernel| &kernel.version),
                "suite": row.kernel.as_ref().map(|kernel| &kernel.suite),
                "unavailable": row.unavailable,
                "session": row.session,
                "problems": row.problems,
                "seconds": row.took.as_secs(),
            })
        })
        .collect();
    Ok(serde_json::to_string_pretty(&rows)?)
}

fn line(first: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<String> = cells.collect();
    format!("| {first} | {} |", cells.join(" | "))
}

fn title(row: &Row) -> String {
    match &row.kernel {
        Some(kernel) => {
            let (major, minor, patch) = kernel.number;
            format!("{major}.{minor}.{patch}")
        }
        None if row.session.kernel.is_empty() => row.requested.clone(),
        None => row.session.kernel.clone(),
    }
}

fn doctor(row: &Row) -> String {
    if row.unavailable.is_some() {
        "-".to_owned()
    } else if row.session.refused() {
        format!("no: {}", row.session.missing.join(", "))
    } else {
        "yes".to_owned()
    }
}

fn cell(row: &Row, group: &str) -> String {
    match row.session.groups.get(group) {
        Some(group) => {
            let all = group.passed + group.failed.len();
            let red = if group.failed.is_empty() {
                ""
            } else {
                " **red**"
            };
            let skipped = match group.skipped {
                0 => String::new(),
                number => format!(" ({number} skipped)"),
            };
            format!("{}/{all}{skipped}{red}", group.passed)
        }
        None if row.session.refused() => "refused".to_owned(),
        None => "-".to_owned(),
    }
}
