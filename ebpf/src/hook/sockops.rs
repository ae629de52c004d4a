//! State changes of the pods' TCP sockets.
//!
//! The connecting socket's 4-tuple is final just before its SYN is sent: the dialed address is
//! published as a handshake row. When the sidecar's socket is established, the address moves into
//! that socket's record and the row is removed. If the connection closes before that, its row is
//! removed then. A listening socket of the sidecar is stored for inbound connections.

use aya_ebpf::{
    bindings::{
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_TCP_CONNECT_CB,
        BPF_SOCK_OPS_TCP_LISTEN_CB, BPF_TCP_CLOSE,
    },
    macros::sock_ops,
    programs::SockOpsContext,
};
use aya_log_ebpf::{debug, warn};
use sidetrack_common::{
    addr::Family,
    conn::{Handshake, HandshakeKey, ListenerKey, Role, to_own_address},
    names::LISTENER_SLOTS,
    pod::POD_BEFORE_SIDECAR,
};

use crate::{ctx::sock_ops::SockOps, maps};

/// Callbacks on the pods' TCP sockets. The kernel ignores the return value of these callbacks.
#[sock_ops]
pub fn st_sockops(ctx: SockOpsContext) -> u32 {
    let ops = SockOps { inner: &ctx };
    // Ifs, not a match: LLVM may turn a match into a jump table, which BPF does not have.
    let op = ops.op();
    if op == BPF_SOCK_OPS_TCP_CONNECT_CB {
        connecting(&ops);
    } else if op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB {
        accepted(&ops);
    } else if op == BPF_SOCK_OPS_STATE_CB {
        state_changed(&ops);
    } else if op == BPF_SOCK_OPS_TCP_LISTEN_CB {
        listening(&ops);
    }
    1
}

#[inline(always)]
fn connecting(ops: &SockOps<'_>) {
    let Some(sk) = ops.socket() else { return };
    let Some(record) = maps::record(sk, false) else {
        return;
    };
    if record.role != Role::Dialed as u16 {
        return;
    }
    let key = client_key(ops);
    let row = Handshake {
        dialed: record.addr,
        dialed_port: record.port,
        pad: [0; 6],
        client_cookie: ops.cookie(),
    };
    if maps::publish(&key, &row).is_err() {
        // connect checked that there was room; here the connection can no longer be refused.
        warn!(ops.inner, "handshake row lost netns={}", key.netns);
    }
    ops.enable_state_callback();
}

#[inline(always)]
fn accepted(ops: &SockOps<'_>) {
    let key = HandshakeKey {
        netns: ops.netns(),
        client: ops.remote(),
        client_port: ops.remote_port(),
        capture_port: ops.local_port(),
        to_own: to_own_address(ops.local()),
    };
    let Some(row) = maps::handshake(&key) else {
        return;
    };
    let Some(sk) = ops.socket() else { return };
    // Without memory for the record the row stays, and getsockopt reads the row.
    let Some(record) = maps::record(sk, true) else {
        return;
    };
    record.addr = row.dialed;
    record.port = row.dialed_port;
    record.role = Role::Accepted as u16;
    debug!(
        ops.inner,
        "accepted netns={} client_port={} dialed_port={}",
        key.netns,
        key.client_port,
        row.dialed_port
    );
    maps::withdraw(&key);
}

#[inline(always)]
fn state_changed(ops: &SockOps<'_>) {
    if ops.new_state() != BPF_TCP_CLOSE {
        return;
    }
    let key = client_key(ops);
    // Another socket may have the same 4-tuple by now.
    if let Some(row) = maps::handshake(&key)
        && row.client_cookie == ops.cookie()
    {
        maps::withdraw(&key);
    }
}

#[inline(always)]
fn client_key(ops: &SockOps<'_>) -> HandshakeKey {
    HandshakeKey {
        netns: ops.netns(),
        client: ops.local(),
        client_port: ops.local_port(),
        capture_port: ops.remote_port(),
        to_own: to_own_address(ops.remote()),
    }
}

#[inline(always)]
fn listening(ops: &SockOps<'_>) {
    let netns = ops.netns();
    let Some(pod) = maps::pod(netns) else { return };
    let Some(policy) = maps::policy(pod.policy) else {
        return;
    };
    let port = ops.local_port();
    // The validation container listens on this port as well, on loopback.
    if pod.flags & POD_BEFORE_SIDECAR != 0
        && port == policy.outbound_port
        && !ops.local().is_loopback()
    {
        maps::end_before_sidecar(netns);
    }
    let serves_inbound = port == policy.inbound_port
        || port == policy.outbound_port && policy.virtual_interfaces != 0;
    // Inbound connections never go to a listener on loopback; with iptables they cannot reach it.
    if !serves_inbound || ops.local().is_loopback() {
        return;
    }
    if ops.is_v6() {
        add(ops, netns, Family::V6, port);
        // Unless it is IPv6-only; then bpf_sk_assign refuses it and the next slot is tried.
        add(ops, netns, Family::V4, port);
    } else {
        add(ops, netns, Family::V4, port);
    }
    debug!(ops.inner, "listening netns={} port={}", netns, port);
}

/// Stores the listener in the first free slot.
#[inline(always)]
fn add(ops: &SockOps<'_>, netns: u64, family: Family, port: u16) {
    for slot in 0..LISTENER_SLOTS {
        let mut key = ListenerKey {
            netns,
            family: family as u16,
            port,
            slot,
        };
        if ops.add_listener(&mut key).is_ok() {
            return;
        }
    }
}
