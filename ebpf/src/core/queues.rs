//! The sidecars' listeners, with the connections that wait for them to accept. The agent reads this program's output: it walks
//! over the listeners of all pods at once, and needs to enter none of them.

use core::ffi::c_void;

use sidetrack_common::conn::ListenerQueue;

use sidetrack_ebpf::ctx::sock_map::MapSocket;

/// One listener. Returns 0: continue with the next.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/sockmap")]
pub fn st_queues(ctx: *mut c_void) -> i32 {
    if let Some(listener) = MapSocket::new(ctx) {
        listener.write(&ListenerQueue {
            key: listener.key,
            socket: listener.cookie(),
            oldest_us: listener.oldest_us(),
            waiting: listener.waiting(),
            limit: listener.limit(),
        });
    }
    0
}
