//! connect and sendmsg of UDP sockets: queries to captured servers go to the sidecar.
//!
//! Answers have to come from the server that was asked, also when one socket asks several, and when several sockets with
//! one port ask one each. The kernel runs a program when a socket receives, but that sees neither the answer nor the
//! address that it was sent to. So the query goes to a dedicated address that stands for the server, like the targets of
//! TCP. On lo that address becomes the query's source (`forward/dns.rs`). The sidecar answers to it, and the program here
//! sends the answer from that address to the application's socket. Where there is no such address, the query goes to the
//! sidecar directly, and the socket's record holds the server that was asked last.
//!
//! A socket or a datagram may name the interface that a query is to leave by. With iptables it reaches the sidecar
//! all the same. Packets to loopback addresses would leave the pod by that interface.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use sidetrack_common::{
    addr::{Addr, Family},
    conn::{AskedFrom, Destination, DestinationKey, DestinationRow, Role, SockRecord},
    decide::{self, EPERM, Outbound, Verdict},
    dns::DNS_PORT,
    event::EventKind,
    pod::POD_DNS,
    rule::Rule,
    target::{DEDICATED_ATTEMPTS, Target, is_dedicated},
};
use sidetrack_ebpf::ctx::{decision, sock_addr::SockAddr};

use crate::{
    ALLOW, DENY,
    maps::{self, Enrolled, Report},
    tables::PodTables,
};

/// connect on an IPv4 socket.
#[cgroup_sock_addr(connect4)]
pub fn st_dns_connect4(ctx: SockAddrContext) -> i32 {
    connect(&SockAddr::<false> { inner: &ctx })
}

/// connect on an IPv6 socket; also its v4-mapped destinations.
#[cgroup_sock_addr(connect6)]
pub fn st_dns_connect6(ctx: SockAddrContext) -> i32 {
    connect(&SockAddr::<true> { inner: &ctx })
}

/// A datagram to an IPv4 address.
#[cgroup_sock_addr(sendmsg4)]
pub fn st_dns_sendmsg4(ctx: SockAddrContext) -> i32 {
    let ctx = SockAddr::<false> { inner: &ctx };
    send(&ctx)
}

/// A datagram to an IPv6 address.
#[cgroup_sock_addr(sendmsg6)]
pub fn st_dns_sendmsg6(ctx: SockAddrContext) -> i32 {
    send(&SockAddr::<true> { inner: &ctx })
}

/// Whether a socket of the sidecar's may be bound to an address.
#[inline(always)]
fn may_be_sidecars(source: Addr) -> bool {
    source.is_unspecified() || source.is(Addr::loopback_of(source.family()))
}

/// What a message would come from, for who receives it.
#[inline(always)]
fn named_target<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Target {
    Target {
        addr: ctx.message_source(),
        port: ctx.bound_port(),
    }
}

/// The sidecar answers a query that named its server: the answer comes from there, and goes to the socket that asked.
/// `false` if it is no such answer.
#[inline(always)]
fn answer<const V6: bool>(ctx: &SockAddr<'_, V6>, to: Addr) -> bool {
    if !may_be_sidecars(ctx.message_source()) || !may_be_sidecars(ctx.source()) {
        return false;
    }
    let target = Target {
        addr: to,
        port: ctx.bound_port(),
    };
    let Some(row) = maps::destination(&DestinationKey::new(ctx.netns(), target)) else {
        return false;
    };
    ctx.set_message_source(to);
    ctx.set_address(row.asked_from(to), ctx.port());
    true
}

/// What the kernel is asked to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Connect,
    Send,
}

#[inline(always)]
fn connect<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    if !ctx.is_udp() {
        return ALLOW;
    }
    let netns = ctx.netns();
    if is_forged(netns, ctx.source()) {
        return DENY;
    }
    match maps::pod(netns) {
        // Where the programs are on the pod's own cgroup and above it, they run twice.
        Some(pod) if pod.flags & POD_DNS != 0 && !is_redirected(ctx, netns) => {
            decide(ctx, netns, pod, Call::Connect)
        }
        _ => ALLOW,
    }
}

/// Whether a socket is bound to an address that stands for a server: to the application its datagrams would be that
/// server's answers. The sidecar's have such a source without that.
#[inline(always)]
fn is_forged(netns: u64, source: Addr) -> bool {
    if !is_dedicated(source) {
        return false;
    }
    let Some(pod) = maps::pod(netns) else {
        return false;
    };
    // Without targets the address is like any other.
    if pod.flags & POD_DNS == 0 || !pod.has_own_targets(source.family()) {
        return false;
    }
    maps::count(netns, pod, source.family(), Rule::UnknownTarget, 0);
    true
}

/// Whether the destination of the call is what a redirect of this socket has made of another one.
#[inline(always)]
fn is_redirected<const V6: bool>(ctx: &SockAddr<'_, V6>, netns: u64) -> bool {
    let (addr, port) = (ctx.address(), ctx.port());
    is_target(ctx, netns, Target { addr, port })
}

/// Whether this socket's queries go to an address because of a redirect.
#[inline(always)]
fn is_target<const V6: bool>(ctx: &SockAddr<'_, V6>, netns: u64, target: Target) -> bool {
    if is_dedicated(target.addr) {
        return maps::destination(&DestinationKey::new(netns, target)).is_some();
    }
    target.addr.is_loopback()
        && dialed_record(ctx).is_some_and(|record| record.target_port == target.port)
}

/// Whether an earlier connect of this socket was redirected.
#[inline(always)]
fn is_connected<const V6: bool>(ctx: &SockAddr<'_, V6>, netns: u64) -> bool {
    let (addr, port) = (ctx.peer(), ctx.peer_port());
    is_target(ctx, netns, Target { addr, port })
}

/// The record of a socket whose queries are redirected without a name in their source.
#[inline(always)]
fn dialed_record<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Option<&'static mut SockRecord> {
    let record = maps::record(ctx.socket())?;
    (record.role == Role::Dialed as u16).then_some(record)
}

#[inline(always)]
fn send<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    let (to, port) = (ctx.address(), ctx.port());
    if is_dedicated(to) && answer(ctx, to) {
        return ALLOW;
    }
    let mut source = ctx.source();
    // What a first run has made of an answer is the sidecar's, and what it has made of a query goes to the sidecar's port.
    if !may_be_sidecars(source) && is_target(ctx, ctx.netns(), named_target(ctx)) {
        source = ctx.message_source();
    }
    if is_forged(ctx.netns(), source) {
        return DENY;
    }
    // 0: a socket that is connected sends with control messages.
    if !(port == DNS_PORT || port == 0) || !ctx.is_udp() {
        return ALLOW;
    }
    let netns = ctx.netns();
    if port == 0 {
        return connected_send(ctx, netns);
    }
    match maps::pod(netns) {
        Some(pod) if pod.flags & POD_DNS != 0 => decide(ctx, netns, pod, Call::Send),
        _ => ALLOW,
    }
}

/// A query of a connected socket may name an interface and a source by control messages. The source stays the socket's own.
/// With a source IPv6 does not look at the interface; IPv4 does, and the destination cannot be another one here.
#[inline(always)]
fn connected_send<const V6: bool>(ctx: &SockAddr<'_, V6>, netns: u64) -> i32 {
    if !is_connected(ctx, netns) {
        return ALLOW;
    }
    if V6 || !ctx.names_interface(Family::V4, true) {
        ctx.set_message_source(ctx.source());
        return ALLOW;
    }
    if let Some(pod) = maps::pod(netns) {
        maps::count(netns, pod, Family::V4, Rule::BoundDevice, 0);
    }
    DENY
}

#[inline(always)]
fn decide<const V6: bool>(ctx: &SockAddr<'_, V6>, netns: u64, pod: Enrolled, call: Call) -> i32 {
    // A redirect replaces them.
    let (destination, port) = (ctx.address(), ctx.port());
    let outcome = try_decide(ctx, netns, pod, call);
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
            owner: Some(ctx.datagram_owner()),
        });
    }
    result
}

/// See the core's. Shared code for both, tried in two forms, doubles what the verifier walks here.
struct Outcome {
    rule: Rule,
    index: u32,
    errno: i32,
    capture_port: u16,
}

impl Outcome {
    #[inline(always)]
    const fn refused(rule: Rule) -> Self {
        Self {
            rule,
            index: 0,
            errno: EPERM,
            capture_port: 0,
        }
    }
}

#[inline(always)]
fn try_decide<const V6: bool>(
    ctx: &SockAddr<'_, V6>,
    netns: u64,
    pod: Enrolled,
    call: Call,
) -> Outcome {
    let Some(policy) = maps::policy(pod.policy) else {
        return Outcome::refused(Rule::NoPolicy);
    };
    let destination = ctx.address();
    let is_connected = is_connected(ctx, netns);
    let asked = if call == Call::Send {
        ctx.message_source()
    } else {
        ctx.source()
    };
    let loopback = Addr::loopback_of(destination.family());
    // The socket may have the source of connect's redirect.
    let bound_to = if is_connected && asked.is(loopback) {
        Addr::UNSPECIFIED
    } else {
        asked
    };
    let conn = Outbound {
        owner: if ctx.port() == DNS_PORT {
            ctx.datagram_owner()
        } else {
            // Its owner decides nothing.
            decide::Owner::UNKNOWN
        },
        source: bound_to,
        destination,
        port: ctx.port(),
        mark: ctx.mark(),
        routing_header: false,
        captured_family: pod.captures(destination.family()),
    };
    let tables = PodTables::of_socket(netns, pod, (&conn, ctx.bound_device()), policy.zero());
    let decision = decision::any(decide::udp(policy, &conn, &tables), policy);
    let mut outcome = Outcome {
        rule: decision.rule,
        index: decision.index,
        errno: 0,
        capture_port: 0,
    };
    match decision.verdict {
        Verdict::Redirect {
            port,
            source,
            dialed,
        } => {
            let query = Query {
                call,
                asked,
                bound_to,
                is_connected,
                port: conn.port,
            };
            match redirect(ctx, (netns, pod), &query, (port, source, dialed)) {
                Ok(()) => outcome.capture_port = port,
                Err(rule) => return Outcome::refused(rule),
            }
        }
        Verdict::Fail { errno } => outcome.errno = errno,
        _ => {
            if call == Call::Connect {
                forget_record(ctx);
            }
        }
    }
    outcome
}

/// A query that is to be redirected.
struct Query {
    call: Call,
    /// The source that the call asks for.
    asked: Addr,
    /// The same, without the source of a redirect.
    bound_to: Addr,
    /// Whether the socket's connection is redirected.
    is_connected: bool,
    /// The server's port.
    port: u16,
}

/// Sends a query to the sidecar's port `to`. An error is the rule of a refusal.
#[inline(always)]
fn redirect<const V6: bool>(
    ctx: &SockAddr<'_, V6>,
    (netns, pod): (u64, Enrolled),
    query: &Query,
    (to, source, dialed): (u16, Addr, Addr),
) -> Result<(), Rule> {
    if ctx.bound_device() != 0 {
        // The sidecar is reached over lo.
        return Err(Rule::BoundDevice);
    }
    let names_interface = ctx.names_interface(dialed.family(), query.call == Call::Send);
    // 0.0.0.0 is the source, by lo (`ip_route_output_key_hash_rcu`, net/ipv4/route.c). With a source IPv6 does not
    // look at the interface (`ip6_route_output_flags_noref`, net/ipv6/route.c).
    let is_from_name = !V6 && names_interface;
    let asked_from = if is_from_name && ctx.source().is_unspecified() {
        AskedFrom::Target
    } else if query.bound_to.is_unspecified() {
        AskedFrom::Loopback
    } else {
        AskedFrom::Source
    };
    let name = if pod.has_own_targets(dialed.family()) {
        server_name(netns, to, (dialed, query.port), (source, asked_from))
    } else {
        None
    };
    let loopback = Addr::loopback_of(dialed.family());
    let mut addr = loopback;
    match (name, query.call) {
        (Some(name), Call::Send) => {
            addr = if is_from_name {
                Addr::UNSPECIFIED
            } else {
                name.addr
            };
            ctx.set_message_source(if is_from_name {
                name.addr
            } else if query.asked.is_unspecified() {
                loopback
            } else {
                query.asked
            });
        }
        _ if names_interface => return Err(Rule::BoundDevice),
        (Some(name), Call::Connect) => {
            addr = name.addr;
            forget_record(ctx);
        }
        (None, Call::Send) if query.is_connected => {}
        (None, _) => {
            let record = SockRecord {
                addr: dialed,
                source,
                port: query.port,
                role: Role::Dialed as u16,
                capture_port: to,
                target_port: to,
            };
            maps::keep_record(netns, ctx.socket(), &record, 1)?;
        }
    }
    ctx.set_address(addr, to);
    Ok(())
}

/// An earlier connection's.
#[inline(always)]
fn forget_record<const V6: bool>(ctx: &SockAddr<'_, V6>) {
    if let Some(record) = maps::record(ctx.socket()) {
        record.role = Role::Direct as u16;
    }
}

/// The address that names a server for sockets with this source, if there is one.
#[inline(always)]
fn server_name(
    netns: u64,
    capture_port: u16,
    (dialed, port): (Addr, u16),
    (source, asked_from): (Addr, AskedFrom),
) -> Option<Target> {
    let seed = maps::target_seed();
    let asked_from = asked_from as u16;
    for attempt in 0..DEDICATED_ATTEMPTS {
        let target = Target::dedicated((dialed, port), capture_port, attempt, seed);
        let key = DestinationKey::new(netns, target);
        match maps::destination(&key) {
            Some(row)
                if row.is_for(dialed, port, source, false) && row.asked_from == asked_from =>
            {
                return Some(target);
            }
            Some(_) => {}
            None => {
                let row = DestinationRow {
                    key,
                    destination: Destination {
                        dialed,
                        source,
                        dialed_port: port,
                        asked_from,
                        retired: 0,
                    },
                };
                return maps::add_destination(&row).ok().map(|()| target);
            }
        }
    }
    None
}
