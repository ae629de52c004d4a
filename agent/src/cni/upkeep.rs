//! What an agent does about the plugin's files, by the helper: a disk that hangs keeps nothing in the agent from its turn.

use std::{io, os::fd::OwnedFd};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sidetrack_datapath::foreign_files::Job;

use super::install::{Installation, Unmaintained, keeper::Keeper};

/// What the agent does about the CNI plugin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Plugin {
    /// It was started without the plugin. As part of a DaemonSet it looks for an entry that is there nevertheless.
    Ignore(Option<Unmaintained>),
    /// Keeps it in place.
    Keep(Installation),
    /// Removes its entry.
    Remove(Installation),
}

/// Looks at the files, and repairs them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Turn(pub Plugin);

/// How the files are after a turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// Whether everything is as it has to be.
    pub in_place: bool,
    /// What is wrong.
    pub problem: Option<String>,
    /// What was done, in words.
    pub done: Vec<String>,
}

/// Removes the entry for an uninstall. The binary stays: CRI-O runs the plugins a pod was started with when it stops the
/// pod.
#[derive(Debug, Serialize, Deserialize)]
pub struct Removal(pub Plugin);

/// What is remembered from one turn to the next.
enum Kept {
    Installed(Keeper),
    Unmaintained(Unmaintained),
    Nothing,
}

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

impl Job for Turn {
    const NAME: &'static str = "cni-plugin";
    type Answer = State;

    fn run(self) -> io::Result<(State, Option<OwnedFd>)> {
        let kept = &mut *KEPT.lock();
        let kept = match (kept, self.0) {
            (Some(kept), _) => kept,
            (none, Plugin::Keep(installation)) => {
                none.insert(Kept::Installed(Keeper::new(installation)))
            }
            (none, Plugin::Ignore(Some(found))) => none.insert(Kept::Unmaintained(found)),
            (none, Plugin::Ignore(None)) => none.insert(Kept::Nothing),
            (none, Plugin::Remove(installation)) => {
                let done = installation.remove(true).map_err(in_words)?;
                *none = Some(Kept::Nothing);
                let state = State {
                    in_place: true,
                    done,
                    ..State::default()
                };
                return Ok((state, None));
            }
        };
        let state = match kept {
            Kept::Installed(keeper) => State {
                done: keeper.turn(),
                in_place: keeper.is_in_place(),
                problem: keeper.problem().map(str::to_owned),
            },
            Kept::Unmaintained(found) => {
                found.turn();
                State {
                    in_place: true,
                    problem: found.problem().map(str::to_owned),
                    ..State::default()
                }
            }
            Kept::Nothing => State {
                in_place: true,
                ..State::default()
            },
        };
        Ok((state, None))
    }
}

impl Job for Removal {
    const NAME: &'static str = "cni-plugin-removal";
    type Answer = Vec<String>;

    fn run(self) -> io::Result<(Vec<String>, Option<OwnedFd>)> {
        // Not while a turn is writing.
        let mut kept = KEPT.lock();
        let done = match self.0 {
            Plugin::Keep(plugin) | Plugin::Remove(plugin) => plugin.remove(true),
            Plugin::Ignore(Some(found)) => found.remove(),
            Plugin::Ignore(None) => Ok(Vec::new()),
        };
        // A turn that comes later puts nothing back.
        *kept = Some(Kept::Nothing);
        Ok((done.map_err(in_words)?, None))
    }
}

fn in_words(error: anyhow::Error) -> io::Error {
    io::Error::other(format!("{error:#}"))
}
