//! What the plugin and the agent exchange over the agent's socket.

pub use sidetrack_reconcile::cni::{CniAnswer, PATH, Question, Sandbox};
