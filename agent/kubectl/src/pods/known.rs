//! A pod as its agent describes it. The agent may be of another version: fields that it lacks are as if they
//! were empty, and those that are unknown here are kept for programs.

use serde::Deserialize;
use sidetrack_live::{Connections, Sidecar, refusals::LastRefusal};

use crate::{ask::Whole, output::or_dash};

/// A pod in an agent's answer.
pub type Known = Whole<Pod>;

/// What is shown.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its state, in the agent's words.
    pub state: String,
    /// Why, unless enrolled without a problem.
    pub reason: Option<String>,
    /// What people should know although nothing is wrong.
    #[serde(default)]
    pub notes: Vec<String>,
    netns: Option<Netns>,
    policy_id: Option<u32>,
    #[serde(default)]
    ipv6: bool,
    sidecar: Option<Sidecar>,
    #[serde(default)]
    connections: Connections,
    #[serde(default)]
    refusals: Vec<LastRefusal>,
}

#[derive(Clone, Debug, Deserialize)]
struct Netns {
    inode: u64,
}

impl Known {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.shown.namespace, self.shown.name)
    }

    /// What the sidecar does.
    pub fn listener(&self) -> String {
        self.if_enrolled(self.sidecar().to_string())
    }

    /// What is to be known of a sidecar that hangs.
    pub fn hangs(&self) -> Option<String> {
        self.sidecar().remark()
    }

    fn sidecar(&self) -> Sidecar {
        self.shown.sidecar.clone().unwrap_or_default()
    }

    /// Where to look further.
    pub fn last_refusal(&self) -> Option<String> {
        let sidecar = self.sidecar();
        let mut refusals = self.shown.refusals.iter();
        refusals.find_map(|it| it.remark(&sidecar, "kubectl sidetrack why"))
    }

    /// A counter.
    pub fn count(&self, of: fn(&Connections) -> u64) -> String {
        self.if_enrolled(of(&self.shown.connections).to_string())
    }

    /// The inode of its network namespace.
    pub fn netns(&self) -> String {
        or_dash(self.shown.netns.as_ref().map(|netns| netns.inode))
    }

    /// The id of its policy.
    pub fn policy(&self) -> String {
        or_dash(self.shown.policy_id)
    }

    /// The address families that are intercepted.
    pub fn families(&self) -> String {
        self.if_enrolled(if self.shown.ipv6 { "v4,v6" } else { "v4" }.to_owned())
    }

    fn if_enrolled(&self, text: String) -> String {
        match self.shown.netns {
            Some(_) => text,
            None => "-".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
