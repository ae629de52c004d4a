//! connect: decide about the connection. To redirect it, store the dialed address in the socket's
//! record, bind the source address the connection would have had, and rewrite the destination to
//! the sidecar's port.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use aya_log_ebpf::debug;
use sidetrack_common::{
    addr::{Addr, Family},
    conn::{Role, SockRecord},
    decide::{self, Decision, Outbound, Tables as _, Verdict},
    pod::Pod,
    rule::Rule,
};

use super::{ALLOW, DENY};
use crate::{ctx::sock_addr::SockAddr, maps, tables::PodTables};

/// connect on an IPv4 socket.
#[cgroup_sock_addr(connect4)]
pub fn st_connect4(ctx: SockAddrContext) -> i32 {
    connect(&SockAddr::<false> { inner: &ctx })
}

/// connect on an IPv6 socket; also its v4-mapped destinations.
#[cgroup_sock_addr(connect6)]
pub fn st_connect6(ctx: SockAddrContext) -> i32 {
    connect(&SockAddr::<true> { inner: &ctx })
}

#[inline(always)]
fn connect<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    if !ctx.is_tcp() {
        return ALLOW;
    }
    let netns = ctx.netns();
    let Some(pod) = maps::pod(netns) else {
        return ALLOW;
    };
    let decision = match try_connect(ctx, netns, pod) {
        Ok(decision) => decision,
        Err(rule) => Decision::refuse(rule),
    };
    let result = match decision.verdict {
        Verdict::Fail { errno } => {
            ctx.fail_with(errno);
            DENY
        }
        _ => ALLOW,
    };
    maps::count(netns, decision.rule, decision.index);
    debug!(
        ctx.inner,
        "connect netns={} rule={} result={}", netns, decision.rule as u32, result
    );
    result
}

/// Decides about the connection and applies the decision. An error is the rule of a refusal.
#[inline(always)]
fn try_connect<const V6: bool>(
    ctx: &SockAddr<'_, V6>,
    netns: u64,
    pod: &Pod,
) -> Result<Decision, Rule> {
    let policy = maps::policy(pod.policy).ok_or(Rule::NoPolicy)?;
    let destination = ctx.address();
    // A socket may connect again after a failure. An address that an earlier redirect bound is not one
    // that the application chose.
    let earlier = maps::record(ctx.socket(), false);
    let bound_by_sidetrack = earlier
        .as_ref()
        .is_some_and(|record| record.bound_by_sidetrack != 0);
    let source = if bound_by_sidetrack {
        Addr::UNSPECIFIED
    } else {
        ctx.source()
    };
    let tables = PodTables {
        netns,
        policy: pod.policy,
        flags: pod.flags,
    };
    let conn = Outbound {
        owner: ctx.owner(),
        source,
        destination,
        port: ctx.port(),
        routing_header: ctx.has_routing_header(destination.family()),
        captured_family: pod.captures(destination.family()),
    };
    let decision = decide::outbound(policy, &conn, &tables);
    match decision.verdict {
        Verdict::Untouched => {
            if let Some(record) = &earlier
                && record.bound_by_sidetrack != 0
            {
                // Undo the bind of an earlier redirect that failed.
                ctx.bind(Addr::UNSPECIFIED).map_err(|()| Rule::NoSource)?;
            }
            // Without memory for the record only SO_ORIGINAL_DST on this socket is less exact.
            if let Some(record) = maps::record(ctx.socket(), true) {
                *record = SockRecord {
                    addr: decide::effective_destination(&conn),
                    port: conn.port,
                    role: Role::Direct as u16,
                    bound_by_sidetrack: 0,
                    pad: 0,
                };
                name_parent(ctx, record);
            }
        }
        Verdict::Redirect {
            port,
            source: wanted,
            dialed,
        } => {
            if !maps::handshakes_have_room(netns) {
                return Err(Rule::HandshakesFull);
            }
            if ctx.bound_device() != 0 {
                // The sidecar is reached over lo.
                ctx.unbind_device().map_err(|()| Rule::BoundDevice)?;
            }
            let record = maps::record(ctx.socket(), true).ok_or(Rule::NoStorage)?;
            let family = dialed.family();
            let mut target = Addr::loopback_of(family);
            if source.is_unspecified() {
                match bind_source(ctx, wanted, family, bound_by_sidetrack) {
                    Some(bound) => record.bound_by_sidetrack = u16::from(bound),
                    // The application bound a port but no address, so the address cannot be set
                    // any more. Towards the pod's own address the kernel picks that same address
                    // as the source, and the sidecar listens there as well.
                    None if ctx.has_port() && tables.route(wanted).is_local() => target = wanted,
                    // The pod has just lost the address.
                    None => return Err(Rule::NoSource),
                }
            }
            record.addr = dialed;
            record.port = conn.port;
            record.role = Role::Dialed as u16;
            name_parent(ctx, record);
            ctx.set_address(target, port);
        }
        Verdict::Fail { .. } => {}
    }
    Ok(decision)
}

/// Gives the record of a subflow to its MPTCP socket, which is the one that the application asks for names.
/// Without memory for it only the names are less exact.
#[inline(always)]
fn name_parent<const V6: bool>(ctx: &SockAddr<'_, V6>, record: &SockRecord) {
    if let Some(parent) = ctx.mptcp_parent()
        && let Some(of_parent) = maps::record(parent, true)
    {
        *of_parent = *record;
    }
}

/// Binds an unbound socket to the source address it would have had without the redirect. Returns
/// whether the socket is bound by sidetrack now, or `None` if the bind failed.
#[inline(always)]
fn bind_source<const V6: bool>(
    ctx: &SockAddr<'_, V6>,
    wanted: Addr,
    family: Family,
    bound_by_sidetrack: bool,
) -> Option<bool> {
    if wanted.is_unspecified() || wanted.is(Addr::loopback_of(family)) {
        // The kernel picks this address by itself.
        if bound_by_sidetrack {
            ctx.bind(Addr::UNSPECIFIED).ok()?;
        }
        return Some(false);
    }
    ctx.bind(wanted).ok()?;
    Some(true)
}
