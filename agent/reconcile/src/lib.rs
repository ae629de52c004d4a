//! The reconciler's decisions: what is to be done for each pod, and in which order the kernel is
//! written.
//!
//! Nothing here touches the kernel. [`plan`] decides from plain facts, [`Core`] keeps what is known of
//! the pods, and everything that reads or writes the node goes through the trait [`Node`]. The agent
//! implements it with the real kernel, the model test with tables in memory.
//!
//! Invariants, which the model test checks after every write:
//! - a pod's row is written when everything is there that decides, and removed first when the pod leaves;
//! - a policy's rows outlive the last pod row that names it by [`policies::GRACE`];
//! - what is done for one pod writes no row of another.

#![forbid(unsafe_code)]

pub mod allowance;
pub mod cni;
mod core;
pub mod events;
pub mod listing;
pub mod node;
pub mod plan;
pub mod policies;
pub mod repairs;
mod selected;
pub mod state;

pub use self::{
    core::Core,
    events::PodEvent,
    listing::Listing,
    node::{Enrollment, Found, Node, NodeError, Processes, Sought},
    plan::{Phase, Step},
    policies::Policies,
    state::{PodState, Record},
};
