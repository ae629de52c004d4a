//! Differences that are there on purpose. `docs/semantics.md` lists them with their reasons.

use std::net::Ipv4Addr;

use lab::protocol::APP;
use sidetrack_common::{
    addr::Addr,
    target::{is_dedicated, is_shared},
};
use sidetrack_policy::Mode;

use super::Outcome;
use crate::{
    matrix::{Case, Origin, ip, is_broadcast},
    profiles::{CHOSEN_SOURCE, Known, Profile, WITHOUT_V6},
    target::Target,
};

/// The name of a difference that a profile's settings cause; `None` for any other.
pub fn under(
    profile: &Profile,
    case: &Case,
    target: &Target,
    [oracle, ours]: [&Outcome; 2],
) -> Option<&'static str> {
    if case.from == Origin::Neighbor {
        return by_neighbor(case, target, ours);
    }
    let of_profile = profile.known.iter();
    let mut names = of_profile.filter_map(|known| match known {
        Known::FilteredInbound => filtered_inbound(case, oracle, ours),
        Known::FilteredTargets => filtered_targets(case, oracle, ours),
        Known::Translated => translated(case, target, oracle, ours),
        Known::RoutedBySource => routed_by_source(case, oracle, ours),
        Known::Marked => marked(case, target, oracle, ours),
        Known::LoopbackSource => loopback_source(case, oracle, ours),
        Known::ChosenSource => chosen_source(case, oracle, ours),
        Known::WithoutV6 => without_v6(case, oracle, ours),
    });
    names.next()
}

/// The rules redirect before the kernel drops what enters for a loopback address. Of these, targets are refused.
fn by_neighbor(case: &Case, target: &Target, ours: &Outcome) -> Option<&'static str> {
    let to = Addr::from(case.dial.destination.ip());
    let is_target = is_dedicated(to) || is_shared(to);
    let is_safe = match ours {
        Outcome::Fails(errno) => [libc::EINPROGRESS, libc::ECONNREFUSED].contains(errno),
        Outcome::Connects(seen) => !is_target && seen.accepted_by == target.policy.inbound_port,
    };
    ((to.is_loopback() || is_target) && is_safe).then_some(
        "a neighbor's connection to a loopback address or target: as the rules have it under iptables, dropped, refused or captured",
    )
}

/// In mode TPROXY the mark decides about routes.
fn marked(case: &Case, target: &Target, oracle: &Outcome, ours: &Outcome) -> Option<&'static str> {
    let policy = &target.policy;
    let Outcome::Connects(seen) = ours else {
        return None;
    };
    if policy.mode != Mode::Tproxy {
        return None;
    }
    if case.arrives_by.is_some() {
        let is_lost = *oracle == Outcome::Fails(libc::EINPROGRESS);
        return (is_lost && seen.accepted_by == policy.inbound_port).then_some(
            "inbound in mode TPROXY with tcp_fwmark_accept: the sidecar's answers stay in the pod under iptables, captured",
        );
    }
    let has_mark = policy.return_route().map(|route| route.mark) == Some(case.dial.mark);
    (has_mark && seen.accepted_by == policy.outbound_port).then_some(
        "an application's socket with the mark of mode TPROXY, off the pod: routed within the pod under iptables, redirected",
    )
}

/// A filter of the pod sees the packets as the client has sent them.
fn filtered_inbound(case: &Case, oracle: &Outcome, ours: &Outcome) -> Option<&'static str> {
    let is_captured = matches!(oracle, Outcome::Connects(seen) if seen.accepted_by != case.dial.destination.port());
    let is_dropped = *ours == Outcome::Fails(libc::EINPROGRESS);
    (case.arrives_by.is_some() && is_captured && is_dropped).then_some(
        "a filter of the pod that accepts the capture port: lets inbound connections in under iptables, drops the dialed port",
    )
}

/// A filter of the pod sees targets, also those of the connections that come before or beside this one.
fn filtered_targets(case: &Case, oracle: &Outcome, ours: &Outcome) -> Option<&'static str> {
    let Outcome::Connects(seen) = oracle else {
        return None;
    };
    let is_redirected = seen.server.local.ip().to_canonical().is_loopback()
        && seen.server.local != case.dial.destination;
    let is_captured = is_redirected || case.dial.first.is_some() || case.dial.beside.is_some();
    let is_dropped = *ours == Outcome::Fails(libc::EINPROGRESS);
    (case.arrives_by.is_none() && is_captured && is_dropped).then_some(
        "a filter of the pod that accepts 127.0.0.1 and ::1: lets redirected connections in under iptables, drops targets",
    )
}

/// KubeVirt's rules come before the mesh's, and connect and the program on interfaces before both.
fn translated(
    case: &Case,
    target: &Target,
    oracle: &Outcome,
    ours: &Outcome,
) -> Option<&'static str> {
    if let Some(difference) = through_loopback(case, target, oracle, ours) {
        return Some(difference);
    }
    let Outcome::Connects(seen) = ours else {
        let reaches_machine = matches!(oracle, Outcome::Connects(seen) if seen.accepted_by == 22);
        let is_lost = *ours == Outcome::Fails(libc::EINPROGRESS);
        return (case.arrives_by.is_some() && reaches_machine && is_lost).then_some(
            "a captured port that KubeVirt translates: reaches the machine under iptables, times out",
        );
    };
    if !by_sidecar(target, ours) {
        return None;
    }
    let (destination, source) = (case.dial.destination, case.dial.source);
    if case.is_forwarded && destination.port() == 22 {
        return Some(
            "to the machine, at a port that KubeVirt translates: reaches it under iptables, redirected",
        );
    }
    let own = ip("10.77.0.2");
    let is_unspecified = destination.ip().is_unspecified();
    let to_own = destination.ip() == own
        || is_unspecified && source.is_some_and(|source| source.ip() == own);
    let in_pod = seen.server.local.ip().to_canonical().is_loopback();
    (case.arrives_by.is_none() && to_own && in_pod).then_some(
        "to the own address beside KubeVirt's rules: reaches the machine under iptables, redirected",
    )
}

/// Whether the sidecar has the connection.
fn by_sidecar(target: &Target, outcome: &Outcome) -> bool {
    let ports = [target.policy.inbound_port, target.policy.outbound_port];
    matches!(outcome, Outcome::Connects(seen) if ports.contains(&seen.accepted_by))
}

/// KubeVirt's rules translate 127.0.0.1 and `::1`. The latter is the target of sockets bound to it, and both are of the
/// proxy's own calls once rules were noticed.
fn through_loopback(
    case: &Case,
    target: &Target,
    oracle: &Outcome,
    ours: &Outcome,
) -> Option<&'static str> {
    let is_translated = match ours {
        Outcome::Fails(errno) => *errno == libc::EINPROGRESS,
        Outcome::Connects(seen) => {
            let server = seen.server.local.ip().to_canonical();
            [ip("10.79.0.2"), ip("fd79::2")].contains(&server)
        }
    };
    let source = case.dial.source.map(|source| source.ip());
    let is_bound = source.is_some_and(|ip| !ip.is_unspecified());
    (case.arrives_by.is_none() && is_bound && by_sidecar(target, oracle) && is_translated).then_some(
        "a bound socket whose target is 127.0.0.1 or ::1, beside KubeVirt's rules: reaches the sidecar under iptables, the machine or nothing",
    )
}

/// Without addresses the kernel says so before it says that there is no route.
fn without_v6(case: &Case, oracle: &Outcome, ours: &Outcome) -> Option<&'static str> {
    let [without_address, without_route] =
        [libc::EADDRNOTAVAIL, libc::ENETUNREACH].map(Outcome::Fails);
    let is_v6 = case.dial.destination.is_ipv6();
    (is_v6 && *oracle == without_address && *ours == without_route).then_some(WITHOUT_V6)
}

/// The sidecar answers from the dialed address, and under iptables from one of the interface.
fn routed_by_source(case: &Case, oracle: &Outcome, ours: &Outcome) -> Option<&'static str> {
    let is_answered = matches!(oracle, Outcome::Connects(_));
    let is_lost = *ours == Outcome::Fails(libc::EINPROGRESS);
    let crosses = case.is_forwarded || case.from == Origin::Machine;
    (crosses && is_answered && is_lost).then_some(
        "routes by source: the sidecar answers from an address of the interface under iptables, from the dialed one",
    )
}

/// Refused, as without the setting: whether it is on is known to the kernel alone.
fn loopback_source(case: &Case, oracle: &Outcome, ours: &Outcome) -> Option<&'static str> {
    let source = case.dial.source.map(|source| source.ip().to_canonical());
    let is_loopback = source.is_some_and(|source| source.is_ipv4() && source.is_loopback());
    let is_captured = matches!(oracle, Outcome::Connects(seen) if seen.accepted_by != case.dial.destination.port());
    let is_refused = *ours == Outcome::Fails(libc::EINVAL);
    if case.arrives_by.is_some() || !is_loopback || !is_refused {
        return None;
    }
    if is_captured {
        return Some(
            "a socket that is bound to 127.0.0.0/8 connects to another host: redirected under iptables, refused",
        );
    }
    // No TCP connection reaches it, which the kernel says before it looks at the source.
    (is_broadcast(case.dial.destination.ip()) && *oracle == Outcome::Fails(libc::ENETUNREACH)).then_some(
        "a socket that is bound to 127.0.0.0/8 connects to a broadcast address: ENETUNREACH under iptables, EINVAL",
    )
}

/// The routes of views are written before the destination is known.
fn chosen_source(case: &Case, oracle: &Outcome, ours: &Outcome) -> Option<&'static str> {
    let is_unbound = case
        .dial
        .source
        .is_none_or(|source| source.ip().is_unspecified());
    let is_v6 = case.dial.destination.ip().to_canonical().is_ipv6();
    let is_refused = *ours == Outcome::Fails(libc::ENETUNREACH);
    let is_made = matches!(oracle, Outcome::Connects(_));
    (case.arrives_by.is_none() && is_unbound && is_v6 && is_made && is_refused)
        .then_some(CHOSEN_SOURCE)
}

/// Which interface a link-local destination has is not known when the rules are evaluated.
fn link_local(
    case: &Case,
    target: &Target,
    oracle: &Outcome,
    ours: &Outcome,
) -> Option<&'static str> {
    let dialed = case.dial.destination;
    let by_proxy = case.dial.creator != APP;
    let is_own = dialed.ip() == ip("fe80::2");
    let by_interface = is_own || !target.policy.excluded_interfaces.is_empty();
    let reaches =
        |it: &Outcome| matches!(it, Outcome::Connects(seen) if seen.accepted_by == dialed.port());
    let is_refused = *ours == Outcome::Fails(libc::ECONNREFUSED);
    match oracle {
        // The redirect to lo of a socket that its destination binds to eth0 can never be answered.
        Outcome::Fails(libc::EINPROGRESS | libc::EINVAL) if is_refused => {
            Some("IPv6 link-local destination: times out under iptables, refused")
        }
        Outcome::Fails(libc::EINVAL) if *ours == Outcome::Fails(libc::ENETUNREACH) => {
            Some("IPv6 link-local destination without IPv6: EINVAL under iptables, ENETUNREACH")
        }
        _ if reaches(oracle) && is_refused && by_interface && (is_own || !by_proxy) => Some(
            "IPv6 link-local destination of the pod or an excluded interface: untouched under iptables, refused",
        ),
        Outcome::Fails(libc::EINPROGRESS) if by_proxy && is_own && reaches(ours) => Some(
            "a proxy to its pod's link-local address: times out under iptables, reaches the app",
        ),
        _ if reaches(oracle) && by_proxy && is_own && by_sidecar(target, ours) => Some(
            "a proxy to its pod's link-local address in mode TPROXY: reaches the app under iptables, redirected",
        ),
        _ => None,
    }
}

/// The name of a difference that is there on purpose; `None` for any other.
pub fn difference(
    case: &Case,
    target: &Target,
    oracle: &Outcome,
    ours: &Outcome,
) -> Option<&'static str> {
    let dialed = case.dial.destination;
    if case.arrives_by.is_none() && case.dial.device.is_some() {
        // The redirect to lo that iptables makes can never be answered.
        let lost = matches!(
            oracle,
            Outcome::Fails(libc::EINPROGRESS | libc::ETIMEDOUT | libc::EHOSTUNREACH)
        );
        let refused = *ours == Outcome::Fails(libc::ECONNREFUSED);
        // Root may take the binding off.
        let redirected =
            matches!(ours, Outcome::Connects(seen) if seen.accepted_by != dialed.port());
        return (lost && (refused || redirected))
            .then_some("SO_BINDTODEVICE: times out under iptables, refused or redirected");
    }
    if Addr::from(dialed.ip()).is_link_local() {
        return link_local(case, target, oracle, ours);
    }
    let is_of_mangle =
        target.policy.mode == Mode::Tproxy && target.policy.dialect.proxy_mark().is_none();
    if case.is_forwarded && is_of_mangle {
        // The rules mark every packet of an established connection that enters, also the answers to one that they
        // did not redirect, and the mark keeps these in the pod.
        let lost = *oracle == Outcome::Fails(libc::EINPROGRESS);
        let passed = match ours {
            Outcome::Fails(errno) => *errno == libc::ECONNREFUSED,
            Outcome::Connects(seen) => seen.accepted_by == dialed.port(),
        };
        return (lost && passed).then_some(
            "through a pod in mode TPROXY, captured by no rule: times out under iptables, passes",
        );
    }
    if case.dial.transparent && dialed.ip() == Ipv4Addr::LOCALHOST {
        // The rules restore the mark of the answers after these were routed, and 127.0.0.1 cannot leave the pod.
        let lost = *oracle == Outcome::Fails(libc::EINPROGRESS);
        return lost.then_some(
            "the client's address to 127.0.0.1 in mode TPROXY: times out under iptables, reaches the app",
        );
    }
    if case.dial.transparent && target.policy.includes_loopback() {
        let redirected = match oracle {
            Outcome::Fails(errno) => *errno == libc::EINPROGRESS,
            Outcome::Connects(seen) => seen.accepted_by == target.policy.inbound_port,
        };
        let reaches_app = match ours {
            // Off the pod the mark's route leads nowhere.
            Outcome::Fails(errno) => [libc::ECONNREFUSED, libc::EINPROGRESS].contains(errno),
            Outcome::Connects(seen) => seen.accepted_by == dialed.port(),
        };
        return (redirected && reaches_app).then_some(
            "with the mark in mode TPROXY, by rules that capture loopback: redirected to the sidecar under iptables, reaches the app, or nothing off the pod",
        );
    }
    if case.dial.dissolve && target.policy.dialect.proxy_mark() == Some(case.dial.mark) {
        let accepted_by = |it: &Outcome, port: u16| matches!(it, Outcome::Connects(seen) if seen.accepted_by == port);
        let differs =
            accepted_by(oracle, dialed.port()) && accepted_by(ours, target.policy.outbound_port);
        return differs.then_some(
            "ztunnel's socket that has called its pod, connected again: untouched under iptables, captured",
        );
    }
    if case.dial.segment.is_some() {
        let refused = *ours == Outcome::Fails(libc::ECONNREFUSED);
        return refused
            .then_some("IPv6 routing header: evaluated by its first hop under iptables, refused");
    }
    let Outcome::Connects(seen) = oracle else {
        return None;
    };
    if case.dial.beside.is_some() && !target.policy.rules_ignore_capture_range() {
        let is_in_use = *ours == Outcome::Fails(libc::EADDRNOTAVAIL);
        return is_in_use.then_some(
            "bound port used twice, by rules that capture loopback: remapped under iptables, EADDRNOTAVAIL",
        );
    }
    let mut wanted = seen.clone();
    wanted.server.local = dialed;
    // No packet of an inbound connection is rewritten.
    (case.arrives_by.is_some() && *ours == Outcome::Connects(wanted)).then_some(
        "accepted inbound socket: named by the capture port under iptables, by the original destination by sidetrack",
    )
}
