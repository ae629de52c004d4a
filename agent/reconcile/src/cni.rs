//! What the plugin and the agent say to each other, over the agent's socket.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use sidetrack_policy::PodRef;

/// Path of the plugin's requests on the control socket.
pub const PATH: &str = "/v1/sandboxes";

/// A pod's network namespace, just made: nothing runs in it yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Pod UID.
    pub uid: String,
    /// The sandbox container's id.
    pub container: String,
    /// The network namespace's path, as the runtime has it.
    pub netns: PathBuf,
    /// Its inode.
    pub inode: u64,
    /// A descriptor of it, which the asking process has open.
    pub descriptor: i32,
}

impl Sandbox {
    /// The pod.
    #[must_use]
    pub fn pod(&self) -> PodRef {
        PodRef {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// A question of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "command")]
pub enum Question {
    /// Enroll it, or say that it is none to be enrolled; wait for what is needed.
    Add {
        /// The pod's place.
        sandbox: Sandbox,
        /// How long to wait at most.
        patience: Duration,
    },
    /// Is it as after ADD?
    Check {
        /// The pod's place.
        sandbox: Sandbox,
    },
    /// It is being removed.
    Delete {
        /// The sandbox container's id.
        container: String,
        /// Its network namespace's inode, if it is still there: an agent that has just come does not
        /// know containers.
        inode: Option<u64>,
    },
    /// All others are gone.
    Collect {
        /// Sandbox containers that exist.
        containers: Vec<String>,
    },
    /// Can pods be added?
    Status,
}

/// The agent's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer", content = "reason")]
pub enum CniAnswer {
    /// Its connections are evaluated from the first one on.
    Enrolled,
    /// It is not to be intercepted.
    Skipped(String),
    /// It should be intercepted and cannot be: it must not start.
    Refused(String),
    /// It is not known yet what becomes of it.
    Later(String),
    /// Done; for all other questions.
    Done,
}
