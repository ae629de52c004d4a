//! connect: decide about the connection. To redirect it, rewrite the destination to a target of the sidecar's port that
//! names the dialed address; where it can have none, store that address in the socket's record.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use aya_log_ebpf::debug;
use sidetrack_common::{
    addr::{Addr, Family},
    conn::{Destination, DestinationKey, DestinationRow, MPTCP_CHARGE, Role, SockRecord},
    decide::{self, Decision, Outbound, Verdict},
    event::EventKind,
    names::{LOOPBACK_INBOUND, MPTCP_OUTBOUND},
    pod::POD_DNS,
    policy::Row,
    rule::Rule,
    target::{DEDICATED_ATTEMPTS, Target, is_dedicated},
};

use super::{ALLOW, DENY};
use crate::{
    maps::{self, Enrolled, Report},
    tables::PodTables,
};
use sidetrack_ebpf::ctx::{decision, sock_addr::SockAddr, sockopt::detects_who_connected};

/// connect on an IPv4 socket.
#[cgroup_sock_addr(connect4)]
#[inline(always)]
pub fn st_connect4(ctx: SockAddrContext) -> i32 {
    connect(&SockAddr::<false> { inner: &ctx })
}

/// connect on an IPv6 socket; also its v4-mapped destinations.
#[cgroup_sock_addr(connect6)]
#[inline(always)]
pub fn st_connect6(ctx: SockAddrContext) -> i32 {
    connect(&SockAddr::<true> { inner: &ctx })
}

#[inline(always)]
fn connect<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    if !ctx.is_tcp() && !ctx.is_udp() {
        return ALLOW;
    }
    let netns = ctx.netns();
    let Some(pod) = maps::pod(netns) else {
        return ALLOW;
    };
    if ctx.is_udp() && pod.flags & POD_DNS != 0 {
        // The programs of DNS capture have decided, and counted it.
        return ALLOW;
    }
    // A redirect replaces them.
    let (destination, port) = (ctx.address(), ctx.port());
    let outcome = if ctx.is_udp() {
        Outcome::new(&Decision::untouched(Rule::Udp))
    } else {
        match try_connect(ctx, netns, pod) {
            Ok(outcome) => outcome,
            Err(rule) => Outcome::new(&Decision::refuse(rule)),
        }
    };
    let mut result = ALLOW;
    if outcome.errno != 0 {
        ctx.fail_with(outcome.errno);
        result = DENY;
    }
    maps::count(
        netns,
        pod,
        destination.family(),
        outcome.rule,
        outcome.index,
    );
    if outcome.errno != 0 || maps::is_traced() {
        maps::report(&Report {
            netns,
            cookie: ctx.cookie(),
            source: ctx.source(),
            destination,
            source_port: ctx.bound_port(),
            destination_port: port,
            capture_port: outcome.capture_port,
            kind: EventKind::Outbound,
            rule: outcome.rule,
            index: outcome.index,
            errno: outcome.errno,
            owner: Some(ctx.owner()),
        });
    }
    debug!(
        ctx.inner,
        "connect netns={} rule={} result={}", netns, outcome.rule as u32, result
    );
    result
}

/// What a decision comes to for the caller and the counters. Unlike [`Decision`] all of it has a value in every case: LLVM copies what has none,
/// and the verifier rejects that.
struct Outcome {
    rule: Rule,
    index: u32,
    errno: i32,
    capture_port: u16,
}

impl Outcome {
    #[inline(always)]
    fn new(decision: &Decision) -> Self {
        let (errno, capture_port) = match decision.verdict {
            Verdict::Fail { errno } => (errno, 0),
            Verdict::Redirect { port, .. } | Verdict::Assign { port, .. } => (0, port),
            Verdict::Untouched | Verdict::BindToLoopback | Verdict::Mark => (0, 0),
        };
        Self {
            rule: decision.rule,
            index: decision.index,
            errno,
            capture_port,
        }
    }
}

/// Decides about the connection and applies the decision. An error is the rule of a refusal.
#[inline(always)]
fn try_connect<const V6: bool>(
    ctx: &SockAddr<'_, V6>,
    netns: u64,
    pod: Enrolled,
) -> Result<Outcome, Rule> {
    let policy = maps::policy(pod.policy).ok_or(Rule::NoPolicy)?;
    let destination = ctx.address();
    // What accepts the connection would take it for one that was redirected.
    // A pod may have an address of that range of IPv6, and then has no targets there.
    if is_dedicated(ctx.source()) && (!V6 || pod.has_own_targets(destination.family())) {
        return Err(Rule::UnknownTarget);
    }
    let conn = Outbound {
        owner: ctx.owner(),
        source: if V6 {
            ctx.source().as_source_to(destination, policy.zero())
        } else {
            ctx.source()
        },
        destination,
        port: ctx.port(),
        mark: ctx.mark(),
        routing_header: ctx.has_routing_header(destination.family()),
        captured_family: pod.captures(destination.family()),
    };
    let tables = PodTables::of_socket(netns, pod, (&conn, ctx.bound_device()), policy.zero());
    let decision = decision::any(decide::outbound(policy, &conn, &tables), policy);
    match decision.verdict {
        // Without rules for a family there is nothing to ask netfilter about, either.
        Verdict::Untouched if !conn.captured_family => {
            // That of an earlier connection of the socket says nothing of this one.
            if let Some(record) = maps::record(ctx.socket()) {
                record.role = 0;
                record.target_port = 0;
            }
        }
        Verdict::Untouched => record_direct(ctx, netns, policy, &conn),
        Verdict::Redirect {
            port,
            source,
            dialed,
        } => redirect(ctx, netns, pod, (policy, &conn), (port, source, dialed))?,
        Verdict::Assign { port, dialed } => {
            if !maps::handshakes_have_room(netns) {
                return Err(Rule::HandshakesFull);
            }
            let record = SockRecord {
                addr: dialed,
                source: Addr::UNSPECIFIED.any(policy.zero()),
                port: conn.port,
                role: Role::Assigned as u16,
                capture_port: port,
                target_port: conn.port,
            };
            keep_record(ctx, netns, &record)?;
            maps::assignment_seen();
        }
        verdict @ (Verdict::BindToLoopback | Verdict::Mark) => {
            let by_lo = verdict == Verdict::BindToLoopback;
            ctx.keep_in_pod(policy.transparent_mark, by_lo)
                .map_err(|()| Rule::BoundDevice)?;
            record_direct(ctx, netns, policy, &conn);
        }
        Verdict::Fail { .. } => {}
    }
    Ok(Outcome::new(&decision))
}

/// Sends the connection to a target of the capture port.
#[inline(always)]
fn redirect<const V6: bool>(
    ctx: &SockAddr<'_, V6>,
    netns: u64,
    pod: Enrolled,
    (policy, conn): (impl Row, &Outbound),
    (port, source, dialed): (u16, Addr, Addr),
) -> Result<(), Rule> {
    if ctx.bound_device() != 0 {
        // The sidecar is reached over lo.
        ctx.unbind_device().map_err(|()| Rule::BoundDevice)?;
    }
    let is_outbound = port == policy.outbound_port;
    // Looked up for either port: a branch would double the paths that the verifier walks.
    let has_plain_only = [LOOPBACK_INBOUND, 0][usize::from(is_outbound)];
    let has_targets = (is_outbound || port == policy.inbound_port)
        && pod.has_own_targets(Family::V4)
        && !maps::sidecar_has(netns, has_plain_only);
    if has_targets
        && pod.has_own_targets(dialed.family())
        && let Some(target) = dedicated_target((netns, policy.zero()), port, conn, dialed, source)
    {
        ctx.set_address(target.addr, target.port);
        return Ok(());
    }
    if !maps::handshakes_have_room(netns) {
        return Err(Rule::HandshakesFull);
    }
    // Only sk_lookup leads a shared target of IPv6 to a listener, and it can assign none of MPTCP.
    let needs_listener = V6 && dialed.family() == Family::V6;
    let is_shared =
        has_targets && is_outbound && !(needs_listener && maps::sidecar_has(netns, MPTCP_OUTBOUND));
    let target = if is_shared {
        Target::shared(
            (dialed, conn.port),
            port,
            ctx.bound_port(),
            maps::target_seed(),
        )
    } else {
        Target::plain(dialed.family(), port)
    };
    let record = SockRecord {
        addr: dialed,
        source,
        port: conn.port,
        role: Role::Dialed as u16,
        capture_port: port,
        target_port: target.port,
    };
    keep_record(ctx, netns, &record)?;
    ctx.set_address(target.addr, target.port);
    Ok(())
}

/// Records a connection that goes to its destination directly. Without memory for the record only SO_ORIGINAL_DST on
/// this socket is less exact.
///
/// Most of these connections need no record: getsockopt detects which end has connected, and sockops asks the rules again. A
/// record is needed for a bound port, and for MPTCP sockets, for which getsockopt cannot detect it.
#[inline(always)]
fn record_direct<const V6: bool>(
    ctx: &SockAddr<'_, V6>,
    netns: u64,
    policy: impl Row,
    conn: &Outbound,
) {
    let needs_none =
        detects_who_connected() && ctx.bound_port() == 0 && ctx.mptcp_parent().is_none();
    // An earlier connection of the socket may have one.
    if !needs_none || maps::record(ctx.socket()).is_some() {
        let record = SockRecord {
            addr: decide::effective_destination(conn, policy.zero()),
            // Zeros that LLVM does not know: it would call a function to clear it, as in a key.
            source: Addr::UNSPECIFIED.any(policy.zero()),
            port: conn.port,
            role: Role::Direct as u16,
            // sockops finds out.
            capture_port: 0,
            target_port: conn.port,
        };
        let _ = keep_record(ctx, netns, &record);
    }
}

/// Keeps the record of a socket's connection. That of a subflow is also its MPTCP socket's, which is the one that the
/// application asks for names, and closes.
#[inline(always)]
fn keep_record<const V6: bool>(
    ctx: &SockAddr<'_, V6>,
    netns: u64,
    record: &SockRecord,
) -> Result<(), Rule> {
    let mut charge = 1;
    if let Some(parent) = ctx.mptcp_parent() {
        maps::keep_record(netns, parent, record, MPTCP_CHARGE)?;
        charge = 0;
    }
    maps::keep_record(netns, ctx.socket(), record, charge)
}

/// The target that names the destination, if there is one for it. Neither end then needs a record.
#[inline(always)]
fn dedicated_target(
    (netns, zero): (u64, u32),
    port: u16,
    conn: &Outbound,
    dialed: Addr,
    source: Addr,
) -> Option<Target> {
    // A socket that is bound to loopback has that address at both ends.
    if conn.source.is_loopback() {
        return None;
    }
    let bound = conn.is_bound(zero);
    let seed = maps::target_seed();
    for attempt in 0..DEDICATED_ATTEMPTS {
        let target = Target::dedicated((dialed, conn.port), port, attempt, seed);
        let key = DestinationKey::new(netns, target);
        let is_same = match maps::destination(&key) {
            Some(row) => row.is_for(dialed, conn.port, source, bound),
            None => {
                let row = DestinationRow {
                    key,
                    destination: Destination {
                        dialed,
                        source,
                        dialed_port: conn.port,
                        asked_from: 0,
                        retired: 0,
                    },
                };
                return maps::add_destination(&row).ok().map(|()| target);
            }
        };
        if is_same {
            return Some(target);
        }
    }
    None
}
