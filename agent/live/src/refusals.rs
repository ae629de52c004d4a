//! What is said of a pod's refused connections in a list of pods.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sidetrack_base::duration;
use sidetrack_common::rule::Rule;

use crate::Sidecar;

/// Refusals of a sidecar that accepts connections again are not remarked on after this many seconds: every sidecar refuses
/// some while it starts.
const RECENT: u64 = 60;

/// The last refusal for a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRefusal {
    /// Name of the rule.
    pub reason: String,
    /// How long ago it was, in seconds, if that is known.
    #[serde(default)]
    pub seconds_ago: Option<u64>,
}

/// Whether a rule refuses because the sidecar does not listen.
#[must_use]
pub fn is_without_sidecar(rule: &str) -> bool {
    [Rule::NoListener, Rule::SidecarRefused]
        .iter()
        .any(|it| it.name() == rule)
}

impl LastRefusal {
    /// Where to look further, by a command; `None` if it is over and its reason is gone.
    #[must_use]
    pub fn remark(&self, sidecar: &Sidecar, command: &str) -> Option<String> {
        let is_over = sidecar.is_started()
            && is_without_sidecar(&self.reason)
            && self.seconds_ago.is_some_and(|ago| ago > RECENT);
        if is_over {
            return None;
        }
        let ago = self.seconds_ago.map(Duration::from_secs);
        let ago = ago.map(duration::text);
        let ago = ago.map_or_else(String::new, |ago| format!(" {ago} ago"));
        Some(format!(
            "last refused{ago}: {}, see `{command}`",
            self.reason
        ))
    }
}

#[cfg(test)]
mod tests;
