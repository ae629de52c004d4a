//! The file of the list of events. Anything may stand in its place: it is read up to a bound, and what is no list of
//! events is refused.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use sidetrack_live::history::Entry;
use sidetrack_policy::text::{cut, escaped};

use super::{MAX_ENTRIES, MAX_TEXT};
use crate::observe::kept_file;

/// More than [`MAX_ENTRIES`] of the longest.
const MAX_SIZE: u64 = 4 << 20;
/// The form of the file. What another form has is not read.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct File<E> {
    version: u32,
    entries: E,
}

/// The file that belongs to a control socket.
#[must_use]
pub fn path(socket: &Path) -> PathBuf {
    socket.with_file_name("events.json")
}

/// What is in the file, oldest first; `None` if there is none.
///
/// # Errors
/// If it is something else than a list of events.
pub fn read(path: &Path) -> Result<Option<Vec<Entry>>> {
    let Some(text) = kept_file::read(path, MAX_SIZE)? else {
        return Ok(None);
    };
    let shown = path.display();
    let entries = entries(&text).with_context(|| format!("{shown} is no list of events"))?;
    Ok(Some(entries))
}

fn entries(text: &[u8]) -> Result<Vec<Entry>> {
    let File { version, entries }: File<Vec<Entry>> = serde_json::from_slice(text)?;
    ensure!(version == VERSION, "it has version {version}");
    // In the order in which they happened. A clock may have been set back meanwhile.
    let mut entries: Vec<Entry> = entries.into_iter().filter_map(cleaned).collect();
    entries.drain(..entries.len().saturating_sub(MAX_ENTRIES));
    Ok(entries)
}

/// An entry as this agent would have written it; `None` without a time.
fn cleaned(mut entry: Entry) -> Option<Entry> {
    let time = |text: &str| {
        let time = humantime::parse_rfc3339(text).ok()?;
        Some(super::timestamp(time))
    };
    entry.time = time(&entry.time)?;
    entry.first = entry.first.as_deref().and_then(time);
    for text in entry.pod.iter_mut().chain([&mut entry.text]) {
        *text = escaped(&cut(text, MAX_TEXT));
    }
    Some(entry)
}

/// What the file is to have.
pub(super) fn content(entries: &[Entry]) -> Vec<u8> {
    let file = File {
        version: VERSION,
        entries,
    };
    serde_json::to_vec(&file).unwrap_or_default()
}
