//! The node's side of ZDS, the protocol by which Istio's ztunnel learns of ambient pods.
//!
//! ztunnel connects to a Unix socket, is handed every pod with a descriptor of its network namespace, and makes its
//! sockets there. What is to be served stands in one [`Table`]; each ztunnel has a session that sends it what it does
//! not have yet, one message at a time, and waits for each acknowledgement. Nothing is queued, so a ztunnel that hangs
//! costs one connection, and one that comes back is sent everything again.
//!
//! Rules are istio-cni's (`cni/pkg/nodeagent/ztunnelserver.go`) and ztunnel's (`proto/zds.proto`, `src/inpod`):
//! - only the newest ztunnel is sent new pods, as during an upgrade the older one drains; all are sent pods that end;
//! - a pod whose namespace is not at hand is kept rather than removed;
//! - an acknowledgement that does not come within [`ACK_TIMEOUT`] ends the connection.
//!
//! Who asks whether a pod is served:
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use sidetrack_ambient::{Served, Table};
//!
//! let table = Table::default();
//! assert_eq!(table.served("uid-1"), Served::Waiting, "the node's pods are not known");
//! table.set(BTreeMap::new());
//! assert_eq!(table.served("uid-1"), Served::NotListed);
//! ```

#![forbid(unsafe_code)]

pub mod message;
mod packet;
mod server;
mod session;
mod table;

pub use self::{
    server::{Server, is_answered},
    session::ACK_TIMEOUT,
    table::{Netns, Served, Table, Workload, workload_uid},
};
