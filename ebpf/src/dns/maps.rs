//! The maps of the core that these programs use: each is pinned, and so the same one.

#![expect(
    dead_code,
    reason = "the modules are the core's, which uses all of them"
)]

#[path = "../core/maps/atomic.rs"]
mod atomic;
#[path = "../core/maps/counts.rs"]
mod counts;
#[path = "../core/maps/destinations.rs"]
mod destinations;
#[path = "../core/maps/events.rs"]
mod events;
#[path = "../core/maps/pods.rs"]
mod pods;
#[path = "../core/maps/records.rs"]
mod records;

pub use counts::count;
pub use destinations::{add_destination, destination, target_seed};
pub use events::{Report, is_traced, report};
pub use pods::{
    Enrolled, iface, is_before_sidecar, owner_rule, pod, policy, port_rule, range_rule, route,
    route_view,
};
pub use records::{keep_record, record};

/// LLVM moves no access to memory from one side to the other.
#[inline(always)]
fn keep_order() {
    // SAFETY: it contains no instruction.
    unsafe { core::arch::asm!("") };
}
