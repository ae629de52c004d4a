//! Options that lead a socket's packets elsewhere: to another interface, or to a hop that they name. connect sees those that a
//! socket has; here they are refused where it has decided already. Packets to another hop are another connection to
//! iptables, whatever the rules have decided about this one. Another interface matters to one that is redirected, or whose
//! SYN is not sent yet (TCP_FASTOPEN_CONNECT).

use aya_ebpf::{
    bindings::{BPF_TCP_CLOSE, BPF_TCP_LISTEN, BPF_TCP_SYN_SENT},
    macros::cgroup_sockopt,
    programs::SockoptContext,
};
use sidetrack_common::{
    addr::Addr,
    conn::{DestinationKey, Meaning},
    decide::EPERM,
    event::EventKind,
    rule::Rule,
    target::{Target, is_dedicated},
};

use super::{ALLOW, DENY};
use crate::maps::{self, Enrolled, Report};
use sidetrack_ebpf::ctx::sockopt::{SOL_IP, SOL_IPV6, SockOpt};

const SOL_SOCKET: i32 = 1;
const IP_OPTIONS: i32 = 4;
const SO_BINDTODEVICE: i32 = 25;
const SO_BINDTOIFINDEX: i32 = 62;
const IPV6_2292RTHDR: i32 = 5;
const IPV6_2292PKTOPTIONS: i32 = 6;
const IPV6_RTHDR: i32 = 57;

/// setsockopt on the pods' sockets, before the kernel's own work. A call that fails here fails with EPERM.
#[cgroup_sockopt(setsockopt)]
pub fn st_setsockopt(ctx: SockoptContext) -> i32 {
    let opt = SockOpt { inner: &ctx };
    let is_refused = leads_elsewhere(&opt).is_some_and(|way| is_refused(&opt, way));
    // The kernel reads the caller's value, not the program's copy of it, which has at most one page.
    opt.keep_result();
    if is_refused { DENY } else { ALLOW }
}

/// Where an option leads packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Interface,
    Hop,
}

/// Whether packets may take another way with the option. Without a value it is removed.
#[inline(always)]
fn leads_elsewhere(opt: &SockOpt<'_>) -> Option<Way> {
    let way = match (opt.level(), opt.name()) {
        (SOL_SOCKET, SO_BINDTODEVICE | SO_BINDTOIFINDEX) => Way::Interface,
        (SOL_IP, IP_OPTIONS) | (SOL_IPV6, IPV6_RTHDR | IPV6_2292RTHDR | IPV6_2292PKTOPTIONS) => {
            Way::Hop
        }
        _ => return None,
    };
    opt.has_value().then_some(way)
}

/// Whether the socket is of a pod, and connect has decided without the option. It is counted then.
#[inline(always)]
fn is_refused(opt: &SockOpt<'_>, way: Way) -> bool {
    let netns = opt.netns();
    let Some(pod) = maps::pod(netns) else {
        return false;
    };
    let decided = redirected_from(opt, netns).or_else(|| untouched(opt, pod, way));
    let Some((dialed, port)) = decided else {
        return false;
    };
    maps::count(netns, pod, dialed.family(), Rule::SocketOption, 0);
    let (source, source_port) = opt.local();
    maps::report(&Report {
        netns,
        cookie: 0,
        source,
        destination: dialed,
        source_port,
        destination_port: port,
        capture_port: 0,
        kind: EventKind::Outbound,
        rule: Rule::SocketOption,
        index: 0,
        errno: EPERM,
        owner: None,
    });
    true
}

/// What the application has dialed, if the connection that it has goes to the sidecar.
#[inline(always)]
fn redirected_from(opt: &SockOpt<'_>, netns: u64) -> Option<(Addr, u16)> {
    if opt.state() == BPF_TCP_CLOSE {
        return None;
    }
    let (addr, port) = opt.remote();
    if is_dedicated(addr) {
        // Without its row it is a target all the same.
        let row = maps::destination(&DestinationKey::new(netns, Target { addr, port }));
        return Some(row.map_or((addr, port), |row| (row.dialed, row.dialed_port)));
    }
    let record = maps::record(opt.socket())?;
    let is_own = record.meaning(opt.local().1, port) == Meaning::Application;
    is_own.then_some((record.addr, record.port))
}

/// Where the socket's connection goes that is not redirected, if the option is too late for the rules.
#[inline(always)]
fn untouched(opt: &SockOpt<'_>, pod: Enrolled, way: Way) -> Option<(Addr, u16)> {
    let is_late = match way {
        Way::Interface => opt.state() == BPF_TCP_SYN_SENT,
        Way::Hop => !matches!(opt.state(), BPF_TCP_CLOSE | BPF_TCP_LISTEN),
    };
    let (addr, port) = opt.remote();
    (is_late && opt.is_stream() && pod.captures(addr.family())).then_some((addr, port))
}
