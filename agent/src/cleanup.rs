//! Removes everything sidetrack has on a node: hooks, maps, pins, the socket and the CNI plugin's entry.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow};
use nix::unistd::{AccessFlags, access};
use serde::Serialize;

use crate::cni::install::{Entries, remove_entries};
use crate::observe::{history, last_policies};
use crate::server::control_socket::{is_answered, is_socket, remove_socket};
use sidetrack_base::{files::temporary, mesh_settings::last_defaults};
use sidetrack_datapath::kernel::{
    layouts,
    pins::{Lock, Pins},
};

/// What was removed, or would be.
#[derive(Debug, Default, Serialize)]
pub struct Removed {
    /// Pinned links.
    pub links: Vec<PathBuf>,
    /// Pinned maps.
    pub maps: Vec<PathBuf>,
    /// Network configurations without the CNI plugin's entry from then on.
    pub plugin: Vec<PathBuf>,
    /// Directories, the socket, and the CNI plugin's credentials.
    pub other: Vec<PathBuf>,
    /// Entries sidetrack did not create, or that another agent uses; they stay.
    pub left: Vec<PathBuf>,
    /// Why the CNI plugin's entry may still be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Removed {
    fn of_layouts(all: layouts::Removed) -> Self {
        Self {
            links: all.links,
            maps: all.maps,
            plugin: Vec::new(),
            other: all.directories,
            left: all.remaining,
            problem: None,
        }
    }

    /// Whether nothing of sidetrack's was found.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        let all = [
            &self.links,
            &self.maps,
            &self.plugin,
            &self.other,
            &self.left,
        ];
        all.iter().all(|paths| paths.is_empty()) && self.problem.is_none()
    }

    /// Adds what the plugin has in the directory of network configurations.
    fn add_entries(&mut self, entries: Entries) {
        self.plugin = entries.own;
        self.left.extend(entries.other);
        let credentials = match entries.needs_credentials {
            true => &mut self.left,
            false => &mut self.other,
        };
        credentials.extend(entries.credentials);
    }
}

/// Removes everything, unless an agent runs. The CNI plugin's entry goes first, because no pod starts while it
/// is there and no agent answers. Answers what was removed, and why not what is pinned.
///
/// # Errors
/// If an agent runs, or something cannot be removed.
pub fn everything(
    bpffs: &Path,
    socket: &Path,
    cni_conf_dir: Option<&Path>,
) -> Result<(Removed, Option<anyhow::Error>)> {
    let held = take(bpffs, socket)?;
    let mut entries = plugin_entries(cni_conf_dir, socket)?;
    let mut problem = None;
    if let Some(conf_dir) = cni_conf_dir {
        problem = remove_entries(conf_dir, socket).problem;
        let remaining = plugin_entries(cni_conf_dir, socket)?;
        entries.own.retain(|path| !remaining.own.contains(path));
        problem = problem.or_else(|| of_another_socket(&remaining));
    }
    let mut removed = match &held {
        Ok((pins, Some(_held))) => {
            layouts::remove_abandoned_trials(pins)?;
            Removed::of_layouts(layouts::remove_everything(pins.root())?)
        }
        _ => Removed::default(),
    };
    removed.add_entries(entries);
    removed.problem = problem.map(|error| format!("{error:#}"));
    if remove_socket(socket)? {
        removed.other.push(socket.to_owned());
    }
    for path in state_files(socket) {
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        removed.other.push(path);
    }
    Ok((removed, held.err()))
}

/// What [`everything`] would remove, and why it would not. Changes nothing.
///
/// # Errors
/// If something cannot be read.
pub fn preview(
    bpffs: &Path,
    socket: &Path,
    cni_conf_dir: Option<&Path>,
) -> Result<(Removed, Option<anyhow::Error>)> {
    let pins = Pins::new(bpffs);
    let mut entries = plugin_entries(cni_conf_dir, socket)?;
    let problem = entries.unread.take();
    let problem = problem.or_else(|| of_another_socket(&entries));
    let mut removed = match &pins {
        Ok(pins) => Removed::of_layouts(layouts::list_everything(pins.root())?),
        Err(_) => Removed::default(),
    };
    removed.add_entries(entries);
    if is_socket(socket).unwrap_or_default() {
        removed.other.push(socket.to_owned());
    }
    removed.other.extend(state_files(socket));
    let held = take(bpffs, socket).flatten();
    Ok((removed, held.err().or(problem)))
}

/// Takes what is to be removed: no agent uses it, and none starts with it as long as the lock is held. Nothing has to
/// be locked where no pin is. The inner error is that there is no bpffs, where no agent can run, and all else can be
/// removed.
fn take(bpffs: &Path, socket: &Path) -> Result<Result<(Pins, Option<Lock>)>> {
    if is_socket(socket)? && is_answered(socket) {
        return Err(running(socket));
    }
    let pins = match Pins::new(bpffs) {
        Ok(pins) => pins,
        Err(problem) => return Ok(Err(problem)),
    };
    if !pins.root().exists() {
        return Ok(Ok((pins, None)));
    }
    let lock = pins.try_lock()?.ok_or_else(|| running(bpffs))?;
    // Root may write everywhere but to a file system that is read-only.
    access(pins.root(), AccessFlags::W_OK)
        .with_context(|| format!("write in {}", pins.root().display()))?;
    Ok(Ok((pins, Some(lock))))
}

/// What agents keep beside their socket for their successors, as far as it exists.
fn state_files(socket: &Path) -> Vec<PathBuf> {
    let all = [
        last_policies::file(socket),
        last_defaults(socket),
        history::path(socket),
    ];
    // A write may have been cut off.
    let all = all.into_iter().flat_map(|path| [temporary(&path), path]);
    all.filter(|path| path.exists()).collect()
}

fn plugin_entries(conf_dir: Option<&Path>, socket: &Path) -> Result<Entries> {
    conf_dir.map_or_else(
        || Ok(Entries::default()),
        |dir| Entries::of_socket(dir, socket),
    )
}

/// The entry that stays, if there is one, and then no pod starts.
fn of_another_socket(entries: &Entries) -> Option<anyhow::Error> {
    let path = entries.other.first()?.display();
    Some(anyhow!(
        "{path} has an entry that asks an agent on another socket: if none runs there, pass that to --socket"
    ))
}

fn running(place: &Path) -> anyhow::Error {
    let place = place.display();
    anyhow!("an agent is running on {place}: stop it first, or it would lose its hooks")
}
