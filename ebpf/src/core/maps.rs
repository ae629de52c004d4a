//! The core's maps, and its only code that accesses their memory.

mod atomic;
mod counts;
mod destinations;
mod events;
mod handshakes;
mod inbound;
mod inbound_dedup;
mod listeners;
mod pods;
mod records;
mod tasks;

pub use counts::count;
pub use destinations::{add_destination, destination, is_leaving, target_seed};
pub use events::{Report, is_traced, report};
pub use handshakes::{
    count_reason, handshake, handshakes_are_few, handshakes_have_room, has_translated_room,
    publish_handshake, withdraw_handshake,
};
pub use inbound::{inbound_netns, run_inbound_program};
pub use inbound_dedup::is_repeated;
pub use listeners::{add_listener, add_socket, assign_listener, wanted_listener};
pub use pods::{
    Enrolled, assignment_seen, end_before_sidecar, has_rows_off_loopback, has_translation, iface,
    is_before_sidecar, owner_rule, pod, policy, port_rule, range_rule, route, route_view,
    set_sidecar, sidecar_has, translation_seen,
};
pub use records::{keep_record, record, release_record};
pub use tasks::{task_pass, watched_netns};

/// LLVM moves no access to memory from one side to the other.
#[inline(always)]
fn keep_order() {
    // SAFETY: it contains no instruction.
    unsafe { core::arch::asm!("") };
}
