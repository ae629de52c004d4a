//! One file per hook, in the order a connection meets them.

pub mod connect;
pub mod getpeername;
pub mod getsockopt;
pub mod sk_lookup;
pub mod sockops;

/// Cgroup programs: let the call go on.
const ALLOW: i32 = 1;
/// Cgroup programs: fail the call.
const DENY: i32 = 0;
