//! The sidecar asks where a connection wanted to go: SO_ORIGINAL_DST. Every other option passes
//! through untouched, whatever its size.

use aya_ebpf::{
    bindings::{BPF_TCP_CLOSE, BPF_TCP_LISTEN, BPF_TCP_SYN_SENT},
    macros::cgroup_sockopt,
    programs::SockoptContext,
};
use sidetrack_common::{
    addr::{Addr, Family},
    conn::Role,
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
        None => opt.pass(),
    }
    ALLOW
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
        Some(record) if record.role != Role::Idle as u16 => (record.addr, record.port),
        _ => unredirected(opt, asked)?,
    };
    (addr.family() == asked).then_some((addr, port))
}

/// A socket that was not redirected. With iptables, connection tracking would know it by its own
/// address; where it still runs (a pod that kept its rules), its answer stands.
#[inline(always)]
fn unredirected(opt: &SockOpt<'_>, asked: Family) -> Option<(Addr, u16)> {
    if opt.kernel_answered() {
        return None;
    }
    let pod = maps::pod(opt.netns())?;
    if !pod.captures(asked) {
        return None;
    }
    let state = opt.state();
    if state == BPF_TCP_CLOSE || state == BPF_TCP_LISTEN || state == BPF_TCP_SYN_SENT {
        return None;
    }
    Some(opt.local())
}
