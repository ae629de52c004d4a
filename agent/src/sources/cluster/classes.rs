//! Runtime classes: which handler runs the containers of a pod.
//!
//! Invariant: a class that is not known, for whatever reason, changes nothing.

use std::{collections::BTreeMap, time::Duration};

use kube::runtime::watcher::Event;
use sidetrack_policy::{facts::ClassFacts, text::shortened};

use super::watch::{self, Failure, Object};

/// The collection.
pub const PATH: &str = "/apis/node.k8s.io/v1/runtimeclasses";

/// How many are kept. A cluster has a handful.
const MAX_COUNT: usize = 1_000;

/// Handlers by the names of their classes.
#[derive(Debug, Default)]
pub struct Classes {
    known: BTreeMap<String, String>,
    /// A list that is still being read.
    incoming: BTreeMap<String, String>,
    is_settled: bool,
}

impl Classes {
    /// Whether they were listed, or cannot be.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// The handler of a class.
    pub fn handler(&self, class: &str) -> Option<&str> {
        self.known.get(class).map(String::as_str)
    }

    /// Ends the wait for a list that does not come; whether anybody waited.
    pub fn fail(&mut self) -> bool {
        !std::mem::replace(&mut self.is_settled, true)
    }

    /// Applies an event; whether anything has changed.
    pub fn take(&mut self, event: Event<ClassFacts>) -> bool {
        match event {
            Event::Init => {
                self.incoming.clear();
                false
            }
            Event::InitApply(class) => {
                insert(&mut self.incoming, class);
                false
            }
            Event::InitDone => {
                let incoming = std::mem::take(&mut self.incoming);
                let has_changed = incoming != self.known;
                self.known = incoming;
                self.fail() || has_changed
            }
            Event::Apply(class) => insert(&mut self.known, class),
            Event::Delete(class) => {
                let name = class.meta.name.unwrap_or_default();
                self.known.remove(&name).is_some()
            }
        }
    }
}

/// Adds a class, as far as there is room; whether anything has changed.
fn insert(classes: &mut BTreeMap<String, String>, class: ClassFacts) -> bool {
    let name = class.meta.name.unwrap_or_default();
    let handler = shortened(&class.handler.unwrap_or_default());
    let has_room = classes.len() < MAX_COUNT || classes.contains_key(&name);
    has_room && classes.insert(name, handler.clone()) != Some(handler)
}

/// Pauses after failed requests: nothing waits for these, and where they are forbidden they stay so.
#[derive(Debug, Default)]
pub struct Pauses {
    failures: u32,
}

impl watch::Pauses for Pauses {
    fn next(&mut self) -> Duration {
        const DOUBLINGS: u32 = 6;
        let seconds = 1 << self.failures.min(DOUBLINGS);
        self.failures = self.failures.saturating_add(1);
        Duration::from_secs(seconds)
    }

    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Whether the API server has no such objects.
pub fn are_absent(failure: &Failure) -> bool {
    const NOT_FOUND: u16 = 404;
    failure.code() == NOT_FOUND
}

impl Object for ClassFacts {
    fn resource_version(&self) -> Option<&str> {
        self.meta.resource_version.as_deref()
    }
}

#[cfg(test)]
mod tests;
