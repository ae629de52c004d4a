//! Acceleration: what the application and its sidecar send each other goes from socket to socket, past TCP.
//!
//! The callbacks are attached to the cgroups of pods that ask for it, beside those of `sockops`. They store the
//! sockets of both ends. The message program then runs for everything that these send.

use aya_ebpf::{
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, sk_action::SK_PASS,
    },
    macros::{sk_msg, sock_ops},
    programs::{SkMsgContext, SockOpsContext},
};
use sidetrack_common::{
    addr::Addr,
    flow::{Flow, FlowKey, Path},
    target::is_dedicated,
};

use sidetrack_ebpf::ctx::{
    sk_msg::{SkMsg, TcpState},
    sock_ops::SockOps,
};

use crate::flows;

/// Callbacks on the sockets of pods that are accelerated.
#[sock_ops]
pub fn st_accelerate(ctx: SockOpsContext) -> u32 {
    let ops = SockOps { inner: &ctx };
    let op = ops.op();
    if op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB {
        established(&ops);
    }
    1
}

#[inline(always)]
fn established(ops: &SockOps<'_>) {
    let (local, remote) = (ops.local(), ops.remote());
    if !is_of_sidecar(local) && !is_of_sidecar(remote) {
        return;
    }
    let mut key = FlowKey {
        netns: ops.netns(),
        local,
        remote,
        local_port: ops.local_port(),
        remote_port: ops.remote_port(),
        pad: 0,
    };
    // What went with the SYN (TCP Fast Open) may be unread.
    if flows::put_flow(&key, &Flow::new(ops.has_sent())).is_ok() {
        let _ = flows::accelerate(ops.inner.ops, &mut key);
    }
}

/// Whether only connections between an application and its sidecar have the address: a target, or the source
/// of the sidecar toward the application.
#[inline(always)]
fn is_of_sidecar(addr: Addr) -> bool {
    is_dedicated(addr) || addr.is_self()
}

/// A message that one end sends: to the other's queue, or by TCP.
#[sk_msg]
pub fn st_message(ctx: SkMsgContext) -> u32 {
    let msg = SkMsg { inner: &ctx };
    if let Some(tcp) = msg.tcp() {
        let own = msg.key();
        let other = own.reversed();
        publish_read_position(&other, &tcp);
        send(&msg, &own, other, &tcp);
    }
    SK_PASS
}

/// Lets the other end know how far this one has read.
#[inline(always)]
fn publish_read_position(other: &FlowKey, tcp: &TcpState) {
    if let Some(row) = flows::flow(other) {
        // What is counted before the queue is looked at does not count as read while it is in there.
        let flow = row.get();
        row.set_read(flow.read_with(tcp.unread()), tcp.copied_seq());
    }
}

/// Chooses the path, and counts what goes past TCP.
#[inline(always)]
fn send(msg: &SkMsg<'_>, own: &FlowKey, mut other: FlowKey, tcp: &TcpState) {
    let Some(row) = flows::flow(own) else { return };
    let size = msg.size();
    let flow = row.get();
    if flow.path(size, tcp.write_seq()) == Path::Sockmap && !tcp.has_upper_protocol() {
        // Counted first: the other end may read it before this program continues.
        row.set_sent(flow.sent + u64::from(size));
        if flows::redirect(msg.inner.msg, &mut other).is_ok() {
            row.set_by_tcp(false);
            return;
        }
        row.set_sent(flow.sent);
    }
    row.set_by_tcp(true);
}
