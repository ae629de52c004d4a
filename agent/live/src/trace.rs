//! Connections as they are decided: what the agent says of each, and how a line of it reads.

mod flags;
mod line;
mod summary;

use serde::{Deserialize, Serialize};

pub use self::{
    flags::{Flags, name},
    line::{Columns, line_of_one_pod},
    summary::{Summary, missing},
};

/// A process that connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id in the host's numbering.
    pub pid: u32,
    /// The thread's name, with control characters escaped.
    pub name: String,
    /// User that created the socket, in the host's numbering; `None` for the kernel's own sockets.
    pub uid: Option<u32>,
    /// Group that created the socket.
    pub gid: Option<u32>,
}

/// One connection at one moment, as `trace` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// When, RFC 3339, UTC.
    pub time: String,
    /// `namespace/name`, or `netns COOKIE` for a pod that the agent does not know.
    pub pod: String,
    /// `outbound` or `inbound`.
    pub direction: String,
    /// `redirect`, `untouched`, `refuse`, or `failed` for one that was redirected and that the sidecar did not accept.
    pub verdict: String,
    /// The client's address, if it has one already.
    pub source: Option<String>,
    /// The dialed address and port.
    pub destination: String,
    /// Capture port of a redirect.
    pub port: Option<u16>,
    /// Name of the rule, or of the reason.
    pub rule: String,
    /// What the caller gets, if it fails.
    pub errno: Option<i32>,
    /// Who connects, where that is known.
    pub process: Option<Process>,
    /// Cookie of the connecting socket: a failure has that of its decision.
    pub socket: Option<u64>,
}

/// A line of the answer of `/v1/trace`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceLine {
    /// A connection.
    Event(Box<TraceEvent>),
    /// That many connections are missing here.
    Lost(u64),
}

/// A line of `sidetrack trace --attended`: the same lines as `-o json`, and in between that it still runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttendedLine {
    /// The trace runs. The number of these lines before.
    Alive(u64),
    /// A line of the trace.
    #[serde(untagged)]
    Line(TraceLine),
}
