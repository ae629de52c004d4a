//! A socket of the pods is closed: its record is no longer counted as one of its pod's.

use aya_ebpf::{macros::cgroup_sock, programs::SockContext};

use super::ALLOW;
use crate::maps;

/// close on the last descriptor of an IP socket.
#[cgroup_sock(sock_release)]
pub fn st_sock_release(ctx: SockContext) -> i32 {
    maps::release_record(ctx.sock.cast());
    ALLOW
}
