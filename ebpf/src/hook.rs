//! One file per hook.

pub mod accelerate;
pub mod adopt;
pub mod connect;
pub mod forward;
pub mod getsockopt;
pub mod names;
pub mod sk_lookup;
pub mod sockops;
pub mod tasks;

/// Cgroup programs: allow the call.
const ALLOW: i32 = 1;
/// Cgroup programs: fail the call.
const DENY: i32 = 0;
