//! connect and sendmsg of UDP sockets: queries to captured servers go to the sidecar.
//!
//! Answers have to come from the server that was asked, also when one socket asks several. The kernel runs a program when
//! a socket receives, but that sees neither the answer nor the address that it was sent to. So the query carries the
//! server's name in its source: a dedicated address that stands for the server, like the targets of TCP. The
//! sidecar answers to it, and the answer gets the same address as its source. A connected socket has one server, which
//! its record holds. So does the record of a socket for which there is no such address: then it is the server that was
//! asked last.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use sidetrack_common::{
    addr::Addr,
    conn::{Destination, DestinationKey, DestinationRow, Role, SockRecord},
    decide::{self, Outbound, Verdict},
    dns::DNS_PORT,
    event::EventKind,
    pod::POD_DNS,
    rule::Rule,
    target::{DEDICATED_ATTEMPTS, Target, is_dedicated},
};
use sidetrack_ebpf::ctx::sock_addr::SockAddr;

use crate::{
    ALLOW, DENY,
    maps::{self, Enrolled, Report},
    owner::owner,
    tables::PodTables,
};

const EPERM: i32 = 1;

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

/// The sidecar answers a query that named its server: so does the answer, if it comes from where the query went.
#[inline(always)]
fn answer<const V6: bool>(ctx: &SockAddr<'_, V6>, to: Addr) {
    let source = ctx.message_source();
    if !source.is_unspecified() && !source.is(Addr::loopback_of(to.family())) {
        return;
    }
    let target = Target {
        addr: to,
        port: ctx.bound_port(),
    };
    if maps::destination(&DestinationKey::new(ctx.netns(), target)).is_some() {
        ctx.set_message_source(target.addr);
    }
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
    match maps::pod(netns) {
        // Where the programs are on the pod's own cgroup and above it, they run twice.
        Some(pod) if pod.flags & POD_DNS != 0 && !is_redirected(ctx) => {
            decide(ctx, netns, pod, Call::Connect)
        }
        _ => ALLOW,
    }
}

/// Whether the destination of the call is what a redirect of this socket has made of another one.
#[inline(always)]
fn is_redirected<const V6: bool>(ctx: &SockAddr<'_, V6>) -> bool {
    ctx.address().is_loopback()
        && dialed_record(ctx).is_some_and(|record| record.target_port == ctx.port())
}

/// The record of a socket whose queries are redirected without a name in their source.
#[inline(always)]
fn dialed_record<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Option<&'static mut SockRecord> {
    let record = maps::record(ctx.socket())?;
    (record.role == Role::Dialed as u16).then_some(record)
}

#[inline(always)]
fn send<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    let to = ctx.address();
    if is_dedicated(to) {
        answer(ctx, to);
        return ALLOW;
    }
    if ctx.port() != DNS_PORT || !ctx.is_udp() {
        return ALLOW;
    }
    let netns = ctx.netns();
    match maps::pod(netns) {
        Some(pod) if pod.flags & POD_DNS != 0 => decide(ctx, netns, pod, Call::Send),
        _ => ALLOW,
    }
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
            owner: owner(ctx),
        });
    }
    result
}

/// See the core's.
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
    // connect has left the source of the redirect with the socket.
    let is_connected = ctx.peer().is_loopback() && dialed_record(ctx).is_some();
    let bound_to = if is_connected {
        Addr::UNSPECIFIED
    } else {
        ctx.source()
    };
    let conn = Outbound {
        owner: if ctx.port() == DNS_PORT {
            owner(ctx)
        } else {
            // Nobody's counts.
            decide::Owner::UNKNOWN
        },
        source: bound_to,
        destination,
        port: ctx.port(),
        mark: ctx.mark(),
        routing_header: false,
        captured_family: pod.captures(destination.family()),
    };
    let tables = PodTables::of_socket(netns, pod, &conn, policy.zero());
    let decision = decide::udp(policy, &conn, &tables);
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
            outcome.capture_port = port;
            if ctx.bound_device() != 0 {
                // The sidecar is reached over lo.
                return Outcome::refused(Rule::BoundDevice);
            }
            let named = call == Call::Send && pod.has_own_targets(dialed.family());
            if named
                && ctx.source().is_unspecified()
                && let Some(target) = server_name(netns, port, dialed, conn.port, source)
            {
                ctx.set_message_source(target.addr);
            } else if call == Call::Connect || !is_connected {
                let record = SockRecord {
                    addr: dialed,
                    source,
                    port: conn.port,
                    role: Role::Dialed as u16,
                    capture_port: port,
                    target_port: port,
                };
                if let Err(rule) = maps::keep_record(netns, ctx.socket(), &record, 1) {
                    return Outcome::refused(rule);
                }
            }
            let plain = Target::plain(dialed.family(), port);
            ctx.set_address(plain.addr, plain.port);
        }
        Verdict::Fail { errno } => outcome.errno = errno,
        _ => {
            // An earlier connection's.
            if call == Call::Connect
                && let Some(record) = maps::record(ctx.socket())
            {
                record.role = Role::Direct as u16;
            }
        }
    }
    outcome
}

/// The address that names a server, if there is one for it.
#[inline(always)]
fn server_name(
    netns: u64,
    capture_port: u16,
    dialed: Addr,
    port: u16,
    source: Addr,
) -> Option<Target> {
    let seed = maps::target_seed();
    for attempt in 0..DEDICATED_ATTEMPTS {
        let target = Target::dedicated((dialed, port), capture_port, attempt, seed);
        let key = DestinationKey::new(netns, target);
        match maps::destination(&key) {
            Some(row) if row.is_for(dialed, port, source, true) => return Some(target),
            Some(_) => {}
            None => {
                let row = DestinationRow {
                    key,
                    destination: Destination {
                        dialed,
                        source,
                        dialed_port: port,
                        pad: 0,
                        more_pad: 0,
                    },
                };
                return maps::add_destination(&row).ok().map(|()| target);
            }
        }
    }
    None
}
