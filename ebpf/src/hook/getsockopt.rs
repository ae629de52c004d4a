//! The sidecar asks where a connection wanted to go: SO_ORIGINAL_DST. Every other option passes
//! through untouched, whatever its size.

use aya_ebpf::{
    bindings::{BPF_TCP_CLOSE, BPF_TCP_LISTEN, BPF_TCP_SYN_SENT},
    macros::cgroup_sockopt,
    programs::SockoptContext,
};
use sidetrack_common::{
    addr::{Addr, Family},
    conn::HandshakeKey,
};

use super::ALLOW;
use crate::{ctx::sockopt::SockOpt, maps};

const SOL_IP: i32 = 0;
const SOL_IPV6: i32 = 41;
/// `SO_ORIGINAL_DST` and `IP6T_SO_ORIGINAL_DST` have the same number.
const SO_ORIGINAL_DST: i32 = 80;

/// getsockopt on the pods' sockets, after the kernel has answered.
#[cgroup_sockopt(getsockopt)]
pub fn st_getsockopt(ctx: SockoptContext) -> i32 {
    let opt = SockOpt { inner: &ctx };
    match original_destination(&opt) {
        Some((addr, port)) => opt.answer(addr, port),
        // A program before this one may have answered, as that of an earlier layout does for its own
        // connections: to pass would take its answer back.
        None if asks_original_destination(&opt) && opt.kernel_answered() => {}
        None => opt.pass(),
    }
    ALLOW
}

#[inline(always)]
fn asks_original_destination(opt: &SockOpt<'_>) -> bool {
    opt.name() == SO_ORIGINAL_DST && (opt.level() == SOL_IP || opt.level() == SOL_IPV6)
}

/// What to answer, or `None` to leave the kernel's answer.
#[inline(always)]
fn original_destination(opt: &SockOpt<'_>) -> Option<(Addr, u16)> {
    if opt.name() != SO_ORIGINAL_DST {
        return None;
    }
    let asked = match opt.level() {
        SOL_IP => Family::V4,
        SOL_IPV6 => Family::V6,
        _ => return None,
    };
    let (addr, port) = match maps::record(opt.socket(), false) {
        Some(record) => (record.addr, record.port),
        None => without_record(opt, asked)?,
    };
    (addr.family() == asked).then_some((addr, port))
}

/// An accepted socket that has no record.
#[inline(always)]
fn without_record(opt: &SockOpt<'_>, asked: Family) -> Option<(Addr, u16)> {
    // Connection tracking runs here (a pod that kept its rules): its answer stands.
    if opt.kernel_answered() || !opt.is_tcp() {
        return None;
    }
    let netns = opt.netns();
    let pod = maps::pod(netns)?;
    let state = opt.state();
    if !pod.captures(asked)
        || state == BPF_TCP_CLOSE
        || state == BPF_TCP_LISTEN
        || state == BPF_TCP_SYN_SENT
    {
        return None;
    }
    let (local, local_port) = opt.local();
    let (client, client_port) = opt.remote();
    // Redirected, but the kernel had no memory for the record: then the row is still there.
    let key = HandshakeKey {
        netns,
        client,
        client_port,
        capture_port: local_port,
        pad: 0,
    };
    match maps::handshake(&key) {
        Some(row) => Some((row.dialed, row.dialed_port)),
        None => Some((local, local_port)),
    }
}
