//! Reads files and splits them into documents, within bounds.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_saphyr::{Error, budget::BudgetBreach};

use super::{MAX_PODS, object::Object};
use crate::text::printable;

/// Reads a regular file within bounds. A device, a pipe or an endless file would block the reader.
pub fn read_text(path: &Path) -> Result<String> {
    if !fs::metadata(path).context("read the file")?.is_file() {
        bail!("it is not a regular file");
    }
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .context("read the file")?;
    read_bounded(file, is_json(path))
}

/// Reads a text within bounds.
pub(super) fn read_bounded(input: impl Read, is_json: bool) -> Result<String> {
    let (max_mib, cure) = if is_json {
        (4, "split it")
    } else {
        // Hostile YAML needs up to 170 times its size in memory, and a second for two megabytes.
        (2, "split it, or write JSON")
    };
    let max_bytes = max_mib << 20;
    let mut text = String::new();
    input
        .take(max_bytes + 1)
        .read_to_string(&mut text)
        .context("read the file")?;
    if text.len() as u64 > max_bytes {
        bail!("it is larger than {max_mib} MiB; {cure}");
    }
    Ok(text)
}

/// The documents of a file, without the empty ones.
pub(super) fn split(is_json: bool, text: &str) -> Result<Vec<Object>> {
    if !is_json {
        return parse_yaml(text, MAX_NODES);
    }
    let values = serde_json::Deserializer::from_str(text)
        .into_iter::<Option<Object>>()
        .take(MAX_PODS + 1)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| anyhow!("not valid JSON: {error}"))?;
    if values.len() > MAX_PODS {
        bail!("it has more than {MAX_PODS} documents; split it");
    }
    Ok(values.into_iter().flatten().collect())
}

/// How many mappings, lists and values a YAML file may have.
pub const MAX_NODES: usize = 250_000;

/// How deep they may be within each other.
const MAX_DEPTH: usize = 64;

/// The documents of a YAML text with so many nodes at most. All YAML of others is read here.
///
/// # Errors
/// If it is not YAML of that type, has more nodes, or has aliases: with them a few lines stand for any number of nodes.
pub fn parse_yaml<T: DeserializeOwned>(text: &str, max_nodes: usize) -> Result<Vec<T>> {
    // Only the first line is shown; a snippet of the source would cost time and memory.
    let options = || {
        serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_aliases: 0,
                max_depth: MAX_DEPTH,
                max_nodes: max_nodes,
            },
        }
    };
    serde_saphyr::from_multiple_with_options(text, options()).map_err(|error| {
        let budget = match error.without_snippet() {
            Error::Budget { breach, .. } => Some(breach),
            _ => None,
        };
        if let Some(BudgetBreach::Aliases { .. }) = budget {
            return anyhow!("it has YAML aliases (*NAME), which are not read: repeat the value");
        }
        let message = error.to_string();
        let reason = printable(first_line(&message));
        if budget.is_some() {
            return anyhow!(
                "more YAML than is read at once ({reason}): split the file, or write JSON"
            );
        }
        // The parser's errors do not distinguish the two.
        match serde_saphyr::from_multiple_with_options::<IgnoredAny>(text, options()) {
            Ok(_) => anyhow!("not as expected: {reason}"),
            Err(_) => anyhow!("not valid YAML: {reason}"),
        }
    })
}

/// Whether a file's name says that it is JSON.
pub(super) fn is_json(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "json")
}

fn first_line(text: &str) -> &str {
    text.lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or(text)
}

#[cfg(test)]
mod tests;
