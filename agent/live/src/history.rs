//! What happened lately on a node: the entries of `sidetrack events`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::output::or_dash;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An agent started
    AgentStarted,
    /// An agent found pods that an earlier one had enrolled
    TookOver,
    /// A pod was enrolled
    Enrolled,
    /// A pod was released
    Released,
    /// A pod could not be enrolled
    NotEnrolled,
    /// Another policy is active for a pod
    PolicyChanged,
    /// A pod's policy cannot be used
    PolicyRejected,
    /// A pod's policy can be used again
    PolicyAccepted,
    /// An annotation of a pod is perhaps misspelled
    UnknownAnnotation,
    /// The agent repaired what others had changed
    Repaired,
    /// A sidecar listens and accepts
    SidecarUp,
    /// A sidecar does not listen on one of its ports, or on both
    SidecarDown,
    /// A sidecar listens and does not accept
    SidecarHangs,
    /// Connections of a pod were refused for a reason for the first time
    Refused,
    /// A kind of another version.
    #[serde(other)]
    #[value(skip)]
    Other,
}

impl Kind {
    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(|| "other".to_owned(), |value| value.get_name().to_owned())
    }
}

/// Something that happened, perhaps several times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When it happened last, RFC 3339, UTC, with milliseconds.
    pub time: String,
    /// When it happened first, if it has been repeated since, and nothing else happened to the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// How often.
    #[serde(default = "once")]
    pub count: u64,
    /// Its kind.
    pub kind: Kind,
    /// `namespace/name`, if it is about a pod.
    pub pod: Option<String>,
    /// What happened.
    pub text: String,
}

const fn once() -> u64 {
    1
}

/// The headings of [`Entry::cells`].
pub const HEADER: [&str; 4] = ["TIME", "KIND", "POD", "WHAT"];

impl Entry {
    /// Its cells in a table.
    #[must_use]
    pub fn cells(&self) -> [String; HEADER.len()] {
        let what = match (&self.first, self.count) {
            (Some(first), 2..) => format!("{} ({} times since {first})", self.text, self.count),
            _ => self.text.clone(),
        };
        let pod = or_dash(self.pod.as_ref());
        [self.time.clone(), self.kind.name(), pod, what]
    }

    /// Whether it is about a pod of a namespace. Entries of the node are of none.
    #[must_use]
    pub fn is_in(&self, namespace: &str) -> bool {
        let own = self.pod.as_ref().and_then(|pod| pod.split_once('/'));
        own.is_some_and(|(own, _)| own == namespace)
    }

    /// Whether it is about a pod, named `NAMESPACE/POD` or `POD`.
    #[must_use]
    pub fn is_about(&self, pod: &str) -> bool {
        self.pod.as_ref().is_some_and(|own| {
            own == pod || own.split_once('/').is_some_and(|(_, name)| name == pod)
        })
    }
}

/// Which entries are shown.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// Only events of this kind; may be given several times
    #[arg(long, value_enum, value_name = "KIND")]
    pub kind: Vec<Kind>,
    /// Only events that are not older than this, such as 10m or 2h
    #[arg(long, value_name = "DURATION", value_parser = sidetrack_base::duration::duration)]
    pub since: Option<Duration>,
}

impl Flags {
    /// Whether an entry is shown. `begin` is the time that [`Flags::since`] means, in the form of [`Entry::time`].
    #[must_use]
    pub fn wants(&self, entry: &Entry, begin: Option<&str>) -> bool {
        (self.kind.is_empty() || self.kind.contains(&entry.kind))
            && begin.is_none_or(|begin| *entry.time >= *begin)
    }

    /// The same as words of a command line.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let kinds = self
            .kind
            .iter()
            .map(|kind| format!("--kind={}", kind.name()));
        let since = self.since.iter();
        let since = since.map(|since| format!("--since={}ms", since.as_millis()));
        kinds.chain(since).collect()
    }
}

#[cfg(test)]
mod tests;
