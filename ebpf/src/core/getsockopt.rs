//! SO_ORIGINAL_DST, with which the sidecar reads the dialed address of a connection. Every other option
//! is unchanged, at any size.

use aya_ebpf::{
    bindings::{BPF_TCP_CLOSE, BPF_TCP_LISTEN, BPF_TCP_SYN_SENT},
    macros::cgroup_sockopt,
    programs::SockoptContext,
};
use sidetrack_common::{
    addr::{Addr, Family},
    conn::{DestinationKey, HandshakeKey, Meaning},
    target::{Target, is_dedicated},
};

use super::ALLOW;
use crate::maps;
use sidetrack_ebpf::ctx::sockopt::{SOL_IP, SOL_IPV6, SockOpt};

/// `SO_ORIGINAL_DST` and `IP6T_SO_ORIGINAL_DST` have the same number.
const SO_ORIGINAL_DST: i32 = 80;

/// getsockopt on the pods' sockets, after the kernel's own result.
#[cgroup_sockopt(getsockopt)]
pub fn st_getsockopt(ctx: SockoptContext) -> i32 {
    let opt = SockOpt { inner: &ctx };
    match original_destination(&opt) {
        Some((addr, port)) => opt.set_result(addr, port),
        // A program that ran earlier may have set the result: keep_result would discard it.
        None if is_original_destination(&opt) && opt.has_result() => {}
        None => opt.keep_result(),
    }
    ALLOW
}

#[inline(always)]
fn is_original_destination(opt: &SockOpt<'_>) -> bool {
    opt.name() == SO_ORIGINAL_DST && (opt.level() == SOL_IP || opt.level() == SOL_IPV6)
}

/// The dialed address, or `None` to leave the kernel's result.
#[inline(always)]
fn original_destination(opt: &SockOpt<'_>) -> Option<(Addr, u16)> {
    if opt.name() != SO_ORIGINAL_DST {
        return None;
    }
    let family = match opt.level() {
        SOL_IP => Family::V4,
        SOL_IPV6 => Family::V6,
        _ => return None,
    };
    let (addr, port) = match from_target(opt) {
        Some(destination) => destination,
        None => match from_record(opt) {
            Some(destination) => destination,
            None => without_record(opt, family)?,
        },
    };
    (addr.family() == family).then_some((addr, port))
}

/// The original destination of a connection whose target names it, at either end.
#[inline(always)]
fn from_target(opt: &SockOpt<'_>) -> Option<(Addr, u16)> {
    let (local, remote) = (opt.local(), opt.remote());
    let (addr, port) = if is_dedicated(remote.0) {
        remote
    } else if is_dedicated(local.0) {
        local
    } else {
        return None;
    };
    let key = DestinationKey::new(opt.netns(), Target { addr, port });
    let row = maps::destination(&key)?;
    Some((row.dialed, row.dialed_port))
}

/// The original destination that the socket's record has, if the record is about its connection.
#[inline(always)]
fn from_record(opt: &SockOpt<'_>) -> Option<(Addr, u16)> {
    let record = maps::record(opt.socket())?;
    let remote = opt.remote();
    match record.meaning(opt.local().1, remote.1) {
        Meaning::Stale => None,
        Meaning::Translated => Some(remote),
        Meaning::Application | Meaning::Sidecar | Meaning::Direct | Meaning::Assigned => {
            Some((record.addr, record.port))
        }
    }
}

/// With connection tracking (a pod that kept its iptables rules) the kernel's result is right, unless the rules have
/// redirected what was on its way to a target: then it is that target.
#[inline(always)]
fn by_rules(opt: &SockOpt<'_>, family: Family) -> Option<(Addr, u16)> {
    let (addr, port) = opt.result(family)?;
    if !is_dedicated(addr) {
        return None;
    }
    let key = DestinationKey::new(opt.netns(), Target { addr, port });
    let row = maps::destination(&key)?;
    Some((row.dialed, row.dialed_port))
}

/// The original destination of a socket that has no record. The proxy's own connections have none: it is the address of
/// the other end. Of a socket that was accepted it is the local address.
#[inline(always)]
fn without_record(opt: &SockOpt<'_>, family: Family) -> Option<(Addr, u16)> {
    if opt.has_result() {
        return by_rules(opt, family);
    }
    if !opt.is_tcp() {
        return None;
    }
    let netns = opt.netns();
    let is_captured = match maps::pod(netns) {
        Some(pod) => pod.captures(family),
        // Accepted by the sidecar before the pod departed, and asked for after it.
        None => maps::is_leaving(netns),
    };
    let state = opt.state();
    if !is_captured
        || state == BPF_TCP_CLOSE
        || state == BPF_TCP_LISTEN
        || state == BPF_TCP_SYN_SENT
    {
        return None;
    }
    let local = opt.local();
    // Redirected, but the kernel had no memory for the record: then the handshake row still exists.
    match maps::handshake(&HandshakeKey::new(netns, opt.remote(), local)) {
        Some(row) => Some((row.dialed, row.dialed_port)),
        None if opt.has_connected() => Some(opt.remote()),
        None => Some(local),
    }
}
