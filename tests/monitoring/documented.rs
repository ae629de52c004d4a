//! The tables of docs/metrics.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Result, ensure};
use lab::deploy::checkout;

use crate::{alerts, live::Live, page::Described};

/// The cells of the rows whose first cell begins like one of these, without backquotes.
fn rows(first: &[&str]) -> Result<Vec<Vec<String>>> {
    let text = fs::read_to_string(checkout("docs/metrics.md"))?;
    let begins = |line: &str, first: &str| {
        let cell = line.strip_prefix("| `");
        cell.is_some_and(|cell| cell.starts_with(first))
    };
    let rows = text
        .lines()
        .filter(|line| first.iter().any(|first| begins(line, first)));
    let cells = |row: &str| -> Vec<String> {
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    Ok(rows.map(cells).collect())
}

fn unquoted(cell: &str) -> String {
    cell.replace('`', "")
}

/// The table has every metric of the page, with its type, labels and help text, and no other.
pub fn metrics_agree(live: &mut Live) -> Result<()> {
    let mut listed = BTreeMap::new();
    for row in rows(&["sidetrack_", "process_"])? {
        ensure!(
            row.len() == 5 && row.iter().skip(3).all(|cell| !cell.is_empty()),
            "{row:?}"
        );
        let labels = unquoted(&row[2]);
        let labels = labels
            .split(',')
            .map(str::trim)
            .filter(|label| !label.is_empty());
        let described = Described {
            kind: row[1].clone(),
            labels: labels.map(str::to_owned).collect(),
            help: row[3].clone(),
        };
        let name = unquoted(&row[0]);
        ensure!(
            listed.insert(name.clone(), described).is_none(),
            "{name} is listed twice"
        );
    }
    let page = live.page()?;
    let names = |metrics: &BTreeMap<String, Described>| -> BTreeSet<String> {
        metrics.keys().cloned().collect()
    };
    let (there, here) = (names(&page.metrics), names(&listed));
    ensure!(
        there == here,
        "on the page or in the table, but not in both: {:?}",
        there.symmetric_difference(&here)
    );
    for (name, described) in &page.metrics {
        ensure!(
            listed[name] == *described,
            "{name}: {described:?} on the page, {:?} in the table",
            listed[name]
        );
    }
    Ok(())
}

/// The table has every alert of the rule file, and no other.
pub fn alerts_agree(_: &mut Live) -> Result<()> {
    let listed: Vec<String> = rows(&["Sidetrack"])?
        .iter()
        .map(|row| unquoted(&row[0]))
        .collect();
    let rules: Vec<String> = alerts::rules()?
        .into_iter()
        .map(|rule| rule.alert)
        .collect();
    ensure!(
        listed == rules,
        "{listed:?} in the table, {rules:?} in the file"
    );
    Ok(())
}
