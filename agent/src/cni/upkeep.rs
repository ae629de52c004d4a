//! What an agent does about the plugin's files, by the helper: a disk that hangs keeps nothing in the agent from its turn.

use std::{io, os::fd::OwnedFd};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sidetrack_datapath::foreign_files::Job;

use super::install::{Installation, Unmaintained, WRITES, Work, Writes, keeper::Keeper};

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
    /// Why the agent has to end and start again.
    pub obsolete: Option<String>,
}

impl From<Work> for State {
    fn from(Work { done, problem }: Work) -> Self {
        Self {
            in_place: problem.is_none(),
            problem: problem.map(|error| format!("CNI plugin: {error:#}")),
            done,
            obsolete: None,
        }
    }
}

/// Removes the entry for an uninstall. The binary stays: CRI-O runs the plugins a pod was started with when it stops the
/// pod.
#[derive(Debug, Serialize, Deserialize)]
pub struct Removal(pub Plugin);

/// What is remembered from one turn to the next.
enum Remembered {
    Installed(Box<Keeper>),
    Unmaintained(Unmaintained),
    Nothing,
}

static REMEMBERED: Mutex<Option<Remembered>> = Mutex::new(None);

impl Job for Turn {
    const NAME: &'static str = "cni-plugin";
    type Answer = State;

    fn run(self) -> io::Result<(State, Option<OwnedFd>)> {
        let remembered = &mut *REMEMBERED.lock();
        let remembered = match (remembered, self.0) {
            (Some(remembered), _) => remembered,
            (none, Plugin::Keep(installation)) => {
                none.insert(Remembered::Installed(Box::new(Keeper::new(installation))))
            }
            (none, Plugin::Ignore(Some(found))) => none.insert(Remembered::Unmaintained(found)),
            (none, Plugin::Ignore(None)) => none.insert(Remembered::Nothing),
            (none, Plugin::Remove(installation)) => {
                let _writes = WRITES.lock();
                let state = State::from(installation.remove(true));
                if state.in_place {
                    *none = Some(Remembered::Nothing);
                }
                return Ok((state, None));
            }
        };
        let state = match remembered {
            Remembered::Installed(keeper) => State {
                done: keeper.turn(),
                in_place: keeper.is_in_place(),
                problem: keeper.problem().map(str::to_owned),
                obsolete: keeper.obsolete(),
            },
            Remembered::Unmaintained(found) => {
                found.turn();
                State {
                    in_place: true,
                    problem: found.problem().map(str::to_owned),
                    ..State::default()
                }
            }
            Remembered::Nothing => State {
                in_place: true,
                ..State::default()
            },
        };
        Ok((state, None))
    }
}

impl Job for Removal {
    const NAME: &'static str = "cni-plugin-removal";
    type Answer = State;

    fn run(self) -> io::Result<(State, Option<OwnedFd>)> {
        // Not while a turn is writing; one that comes later puts nothing back.
        let mut writes = WRITES.lock();
        *writes = Writes::Ended;
        let work = match self.0 {
            Plugin::Keep(plugin) | Plugin::Remove(plugin) => plugin.remove(true),
            Plugin::Ignore(Some(found)) => found.remove(),
            Plugin::Ignore(None) => Work::default(),
        };
        Ok((work.into(), None))
    }
}
