//! State changes of the pods' TCP sockets.
//!
//! A redirected connection without a dedicated target: the connecting socket's 4-tuple is final just before its SYN is
//! sent, and the dialed address is published as a handshake row. When the sidecar's socket is established, the address
//! moves into that socket's record and the row is removed. If the connection closes before that, its row is removed then.
//!
//! Of all redirected connections those are counted that the sidecar did not accept. A socket of the sidecar that listens on
//! a capture port is stored.

use aya_ebpf::{
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB,
        BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_SOCK_OPS_TCP_LISTEN_CB,
        BPF_TCP_CLOSE, BPF_TCP_SYN_SENT,
    },
    macros::sock_ops,
    programs::SockOpsContext,
};
use aya_log_ebpf::{debug, warn};
use sidetrack_common::{
    addr::{Addr, Family},
    conn::{
        DestinationKey, Handshake, HandshakeKey, HandshakeReason, HandshakeRow, ListenerKey,
        ON_LOOPBACK, Role, SockRecord,
    },
    decide::{self, ECONNREFUSED, Outbound, Tables as _, Verdict},
    event::EventKind,
    names::{LOOPBACK_INBOUND, LOOPBACK_OUTBOUND, MPTCP_INBOUND, MPTCP_OUTBOUND, listener_slots},
    pod,
    rule::Rule,
    target::{Target, is_dedicated},
};

use crate::{
    maps::{self, Report},
    tables::PodTables,
};
use sidetrack_ebpf::ctx::{decision, sock_ops::SockOps};

const E2BIG: i32 = -7;
const ENOMEM: i32 = -12;
const EEXIST: i32 = -17;

/// Callbacks on the pods' TCP sockets. The kernel ignores the return value of these callbacks. As a function of its own it
/// would have a stack beside the program's.
#[sock_ops]
#[inline(always)]
pub fn st_sockops(ctx: SockOpsContext) -> u32 {
    let ops = SockOps { inner: &ctx };
    // Ifs, not a match: LLVM may turn a match into a jump table, which BPF does not have.
    let op = ops.op();
    if op == BPF_SOCK_OPS_TCP_CONNECT_CB {
        connecting(&ops);
    } else if op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB {
        connected(&ops);
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
    // Its target names the destination. Only a failure has to be seen.
    if is_dedicated(ops.remote()) {
        ops.enable_state_callback();
        return;
    }
    let Some(sk) = ops.socket() else { return };
    let record = maps::record(sk).map(|record| &*record);
    let redirected = record.filter(|record| {
        record.role == Role::Dialed as u16 || record.role == Role::Assigned as u16
    });
    let (record, dialed, dialed_port) = if let Some(record) = redirected {
        (*record, record.addr, record.port)
    } else {
        let (remote, port) = (ops.remote(), ops.remote_port());
        if record.is_some_and(|record| remote.is(record.addr) && port == record.port) {
            return;
        }
        let capture_port = port_after_translation(ops);
        if capture_port == 0 {
            return;
        }
        maps::translation_seen();
        let record = SockRecord {
            addr: Addr::UNSPECIFIED,
            source: Addr::UNSPECIFIED,
            port: 0,
            role: Role::Direct as u16,
            capture_port,
            target_port: 0,
        };
        (record, remote, port)
    };
    let row = HandshakeRow {
        key: client_key(ops),
        handshake: Handshake {
            dialed,
            source: record.source,
            dialed_port,
            capture_port: record.capture_port,
            assigned: u32::from(record.role == Role::Assigned as u16),
            client_cookie: ops.cookie(),
        },
    };
    let netns = row.key.netns;
    // connect checked that there was room, but may have put the SYN off (TCP_FASTOPEN_CONNECT) since. It can no longer
    // be refused; without a row its sidecar does not learn where it was to go, and what another program has translated
    // goes past the sidecar. A pod has a few rows that others cannot take.
    let has_room = if record.role == Role::Direct as u16 {
        maps::has_translated_room(netns)
    } else {
        maps::handshakes_are_few(netns)
    };
    if !has_room {
        debug!(ops.inner, "too many handshakes netns={}", netns);
    } else if maps::publish_handshake(&row).is_err() {
        warn!(ops.inner, "handshake row lost netns={}", netns);
    }
    ops.enable_state_callback();
    maps::count_reason(reason(ops, netns, &record));
}

/// Why a connection has no target that names its destination.
#[inline(always)]
fn reason(ops: &SockOps<'_>, netns: u64, record: &SockRecord) -> HandshakeReason {
    if record.role == Role::Assigned as u16 {
        return HandshakeReason::Transparent;
    }
    if record.role == Role::Direct as u16 {
        return HandshakeReason::Translated;
    }
    let pod = maps::pod(netns);
    let policy = pod.and_then(|pod| maps::policy(pod.policy));
    let (Some(pod), Some(policy)) = (pod, policy) else {
        return HandshakeReason::NoTargets;
    };
    let has_targets = pod.has_own_targets(record.addr.family());
    // Without the redirect an unbound socket would have another source.
    let is_bound = record.source.is_unspecified() || record.source.is_loopback();
    if record.capture_port != policy.outbound_port {
        if record.capture_port == policy.inbound_port {
            HandshakeReason::OwnPod
        } else {
            HandshakeReason::Dns
        }
    } else if !has_targets {
        HandshakeReason::NoTargets
    } else if is_bound && ops.local().is_loopback() {
        HandshakeReason::LoopbackSource
    } else {
        HandshakeReason::ManyDestinations
    }
}

/// The port of the sidecar where a connection goes that connect left alone, and a program of an ancestor cgroup has
/// translated to an address of the pod; else 0. As with iptables, which sees the translated address, the rules decide about
/// that: sk_lookup finds the row. Without a record of what was dialed they decide once more as they did.
#[inline(always)]
fn port_after_translation(ops: &SockOps<'_>) -> u16 {
    let (remote, port) = (ops.remote(), ops.remote_port());
    let netns = ops.netns();
    let Some(pod) = maps::pod(netns) else {
        return 0;
    };
    if !pod::may_be_own(pod.flags, remote) || !pod.captures(remote.family()) {
        return 0;
    }
    let Some(policy) = maps::policy(pod.policy) else {
        return 0;
    };
    let tables = PodTables::of_packet(netns, pod);
    // Only the pod's own addresses can be served here. A socket that is bound to a device does not reach them.
    if !tables.is_own(remote) || ops.is_bound_to_device() {
        return 0;
    }
    let conn = Outbound {
        owner: ops.owner(),
        source: ops.local().of_any_family(policy.zero()),
        destination: remote.of_any_family(policy.zero()),
        port,
        mark: ops.mark(),
        routing_header: false,
        captured_family: true,
    };
    // Only the verdict is used, and yet the verifier walks a fifth more instructions if the rule is known to it.
    let decision = decision::any(decide::outbound(policy, &conn, &tables), policy);
    match decision.verdict {
        // sk_lookup serves no other port.
        Verdict::Redirect { port, .. } | Verdict::Assign { port, .. }
            if port == policy.inbound_port || port == policy.outbound_port =>
        {
            port
        }
        _ => 0,
    }
}

#[inline(always)]
fn connected(ops: &SockOps<'_>) {
    // Without a handshake row there is nothing to do when it closes.
    if is_dedicated(ops.remote()) {
        ops.disable_state_callback();
    }
}

#[inline(always)]
fn accepted(ops: &SockOps<'_>) {
    let local = ops.local();
    // Redirected connections arrive on loopback, unless something is known to send them elsewhere.
    if is_dedicated(local) || !local.is_loopback() && !maps::has_rows_off_loopback() {
        return;
    }
    let netns = ops.netns();
    let client = (ops.remote(), ops.remote_port());
    let key = HandshakeKey::new(netns, client, (local, ops.local_port()));
    let Some(row) = maps::handshake(&key) else {
        notice_rules(ops, netns, local);
        return;
    };
    if row.assigned != 0 {
        // The socket's own address is the destination.
        maps::withdraw_handshake(&key);
        return;
    }
    let Some(sk) = ops.socket() else { return };
    // Without room for the record the row stays, and getsockopt reads the row. So it does for MPTCP: the application closes
    // another socket than this one.
    if ops.is_mptcp() {
        return;
    }
    let record = SockRecord {
        addr: row.dialed,
        source: row.source,
        port: row.dialed_port,
        role: Role::Accepted as u16,
        capture_port: row.capture_port,
        target_port: key.target_port,
    };
    if maps::keep_record(netns, sk, &record, 1).is_err() {
        return;
    }
    debug!(
        ops.inner,
        "accepted netns={} client_port={} dialed_port={}",
        key.netns,
        key.client_port,
        row.dialed_port
    );
    maps::withdraw_handshake(&key);
}

/// A connection that reached the inbound port on loopback without a row. The pod may still have rules of iptables, which
/// take the target of the proxy's calls to its own pod for another address of the pod. getsockopt reports where this
/// one was to go; from the next one on the proxy's calls have a row, and all their names.
#[inline(always)]
fn notice_rules(ops: &SockOps<'_>, netns: u64, local: Addr) {
    if !(local.is(Addr::LOOPBACK_V4) || local.is(Addr::LOOPBACK_V6)) {
        return;
    }
    let policy = maps::pod(netns).and_then(|pod| maps::policy(pod.policy));
    if policy.is_some_and(|policy| ops.local_port() == policy.inbound_port) {
        maps::set_sidecar(netns, LOOPBACK_INBOUND, true);
    }
}

#[inline(always)]
fn state_changed(ops: &SockOps<'_>) {
    if ops.new_state() != BPF_TCP_CLOSE {
        return;
    }
    let key = client_key(ops);
    let has_failed = ops.old_state() == BPF_TCP_SYN_SENT;
    if is_dedicated(ops.remote()) {
        let target = Target {
            addr: ops.remote(),
            port: key.target_port,
        };
        if has_failed && let Some(row) = maps::destination(&DestinationKey::new(key.netns, target))
        {
            let dialed = Dialed {
                client: row.source,
                addr: row.dialed,
                port: row.dialed_port,
            };
            failed(ops, key.netns, &dialed, target.port);
        }
        return;
    }
    // Another socket may have the same 4-tuple by now.
    if let Some(row) = maps::handshake(&key)
        && row.client_cookie == ops.cookie()
    {
        let dialed = Dialed {
            client: row.source,
            addr: row.dialed,
            port: row.dialed_port,
        };
        let capture_port = row.capture_port;
        maps::withdraw_handshake(&key);
        if has_failed {
            failed(ops, key.netns, &dialed, capture_port);
        }
    }
}

/// What a connection would be without the redirect.
struct Dialed {
    client: Addr,
    addr: Addr,
    port: u16,
}

/// Counts a connection that connect has redirected and counted, and that the sidecar did not accept.
#[inline(always)]
fn failed(ops: &SockOps<'_>, netns: u64, dialed: &Dialed, capture_port: u16) {
    // Sockets outlive the pod's enrollment; its counters do not.
    let Some(pod) = maps::pod(netns) else { return };
    let errno = ops.error();
    let rule = match errno {
        0 => Rule::GivenUp,
        ECONNREFUSED => Rule::SidecarRefused,
        _ => Rule::SidecarSilent,
    };
    maps::count(netns, pod, dialed.addr.family(), rule, 0);
    if errno == 0 && !maps::is_traced() {
        return;
    }
    maps::report(&Report {
        netns,
        cookie: ops.cookie(),
        source: if dialed.client.is_unspecified() {
            ops.local()
        } else {
            dialed.client
        },
        destination: dialed.addr,
        source_port: ops.local_port(),
        destination_port: dialed.port,
        capture_port,
        kind: EventKind::Outcome,
        rule,
        index: 0,
        errno,
        owner: None,
    });
}

#[inline(always)]
fn client_key(ops: &SockOps<'_>) -> HandshakeKey {
    let netns = ops.netns();
    let client = (ops.local(), ops.local_port());
    HandshakeKey::new(netns, client, (ops.remote(), ops.remote_port()))
}

#[inline(always)]
fn listening(ops: &SockOps<'_>) {
    let netns = ops.netns();
    let Some(pod) = maps::pod(netns) else { return };
    let Some(policy) = maps::policy(pod.policy) else {
        return;
    };
    let port = ops.local_port();
    let local = ops.local();
    // Where iptables sends connections to the outbound port: other addresses get none of them, but inbound ones where both
    // have this port.
    let is_on_loopback = local.is(Addr::loopback_of(local.family()));
    let serves_all = local.is_unspecified();
    let (mut place, mut mptcp) = (0, MPTCP_INBOUND);
    if port == policy.outbound_port && (is_on_loopback || serves_all) {
        mptcp = MPTCP_OUTBOUND;
        place = [0, ON_LOOPBACK][usize::from(is_on_loopback)];
        maps::set_sidecar(netns, LOOPBACK_OUTBOUND, is_on_loopback);
        // Not by one on loopback: the validation container listens there as well. Whatever the policy is now: the leave is
        // an earlier one's.
        if serves_all {
            maps::end_before_sidecar(netns);
        }
    } else if port == policy.inbound_port {
        if is_on_loopback || serves_all {
            maps::set_sidecar(netns, LOOPBACK_INBOUND, is_on_loopback);
        }
        // Inbound connections never go to a listener on loopback; with iptables they cannot reach it.
        if local.is_loopback() {
            return;
        }
        // Any process may bind an address that is not the pod's, and one of targets.
        if !serves_all {
            let route = PodTables::of_packet(netns, pod).route(local);
            if is_dedicated(local) || !(route.is_local() || route.is_unknown()) {
                return;
            }
        }
    } else {
        return;
    }
    let mut key = ListenerKey {
        netns,
        family: Family::V6 as u16 | place,
        port,
        slot: 0,
    };
    // One on an address of its own serves the family of that address, one on all addresses both unless it is IPv6-only.
    let mut is_refused = false;
    if ops.is_v6() && (serves_all || local.family() == Family::V6) {
        is_refused = !add(ops, &mut key);
    }
    if !ops.is_v6() || serves_all && !ops.is_v6_only() || local.family() == Family::V4 {
        key.family = Family::V4 as u16 | place;
        is_refused |= !add(ops, &mut key);
    }
    maps::set_sidecar(netns, mptcp, is_refused);
    debug!(ops.inner, "listening netns={} port={}", netns, port);
}

/// Stores the listener in the first free slot. Answers `false` if the map takes no socket of its kind: those of MPTCP.
#[inline(always)]
fn add(ops: &SockOps<'_>, key: &mut ListenerKey) -> bool {
    for slot in 0..listener_slots(key.family & ON_LOOPBACK) {
        key.slot = slot;
        match maps::add_listener(ops.inner.ops, key) {
            Ok(()) => return true,
            Err(EEXIST) => {}
            Err(errno) => return errno == E2BIG || errno == ENOMEM,
        }
    }
    true
}
