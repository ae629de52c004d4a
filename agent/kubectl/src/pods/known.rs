//! A pod as its agent describes it. The agent may be of another version: fields that it lacks are as if they
//! were empty, and those that are unknown here are kept for programs.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;
use sidetrack_live::{Sidecar, Sockets};

/// A pod in an agent's answer.
#[derive(Clone, Debug)]
pub struct Known {
    /// What is shown.
    pub pod: Pod,
    /// The whole answer.
    pub whole: Value,
}

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
    listener: bool,
    #[serde(default)]
    before_sidecar: bool,
    #[serde(default)]
    connections: Connections,
    #[serde(default)]
    refusals: Vec<Refusals>,
}

/// Refused connections of one reason, the latest first.
#[derive(Clone, Debug, Deserialize)]
struct Refusals {
    reason: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Netns {
    path: String,
}

/// Connections since the pod was enrolled.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Connections {
    /// Outbound, redirected.
    pub outbound_redirected: u64,
    /// Inbound, redirected.
    pub inbound_redirected: u64,
    /// Went direct.
    pub untouched: u64,
    /// Failed.
    pub refused: u64,
}

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = Value::deserialize(deserializer)?;
        let pod = Pod::deserialize(&whole).map_err(D::Error::custom)?;
        Ok(Self { pod, whole })
    }
}

impl Known {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.pod.namespace, self.pod.name)
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
        if let Some(sidecar) = &self.pod.sidecar {
            return sidecar.clone();
        }
        // An agent that does not look whether sidecars accept. Before, they did not look at the outbound port either.
        let outbound = self.whole.get("outbound_listener").map(Value::as_bool);
        Sidecar::of(&Sockets {
            not_yet: self.pod.before_sidecar,
            outbound: outbound.unwrap_or(Some(self.pod.listener)),
            inbound: self.pod.listener,
            queue: None,
        })
    }

    /// Where to look further.
    pub fn last_refusal(&self) -> Option<String> {
        let last = self.pod.refusals.first()?;
        Some(format!(
            "last refused: {}, see `kubectl sidetrack why`",
            last.reason
        ))
    }

    /// A counter.
    pub fn count(&self, of: fn(&Connections) -> u64) -> String {
        self.if_enrolled(of(&self.pod.connections).to_string())
    }

    /// Its network namespace.
    pub fn netns(&self) -> String {
        let netns = self.pod.netns.as_ref();
        netns.map_or_else(|| "-".to_owned(), |netns| netns.path.clone())
    }

    /// The id of its policy.
    pub fn policy(&self) -> String {
        let id = self.pod.policy_id;
        id.map_or_else(|| "-".to_owned(), |id| id.to_string())
    }

    /// The address families that are intercepted.
    pub fn families(&self) -> String {
        self.if_enrolled(if self.pod.ipv6 { "v4,v6" } else { "v4" }.to_owned())
    }

    fn if_enrolled(&self, text: String) -> String {
        match self.pod.netns {
            Some(_) => text,
            None => "-".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
