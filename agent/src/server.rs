//! What the agent answers: on its socket to commands and the CNI plugin, on its port to any client that scrapes
//! metrics, on the node's loopback to kubelet.

// From the bottom up: no module uses one that stands below it in this list.
pub mod metrics;

pub mod metrics_http;

pub mod control_socket;
pub mod probe_port;
pub mod reader;
pub mod service_manager;
