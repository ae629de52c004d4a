//! Connections of a pod by what became of them.

use serde::{Deserialize, Serialize};

/// Connections of a pod since it was enrolled. What an agent of another version does not count is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connections {
    /// Outbound connections redirected to the sidecar, without those that it did not accept.
    pub outbound_redirected: u64,
    /// Inbound connections redirected to the sidecar.
    pub inbound_redirected: u64,
    /// Connections that went direct.
    pub untouched: u64,
    /// Outbound connections that went direct before the sidecar first listened. The pod requests
    /// that by the annotation sidetrack.dev/before-sidecar.
    pub before_sidecar: u64,
    /// Connections that failed because of a missing sidecar, route or kernel resource.
    pub refused: u64,
    /// Connections that the application closed before the sidecar had accepted them.
    pub given_up: u64,
    /// UDP sockets that were connected; they are not intercepted. Datagrams of unconnected sockets are
    /// not seen.
    pub udp: u64,
}
