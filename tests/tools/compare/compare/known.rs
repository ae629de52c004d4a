//! Differences that are there on purpose. `docs/semantics.md` lists them with their reasons.

use std::net::Ipv4Addr;

use sidetrack_policy::Mode;

use super::Outcome;
use crate::{matrix::Case, profiles::Profile, target::Target};

/// The name of a difference that some settings cause; `None` for any other.
pub fn under(
    _profile: &Profile,
    _case: &Case,
    _oracle: &Outcome,
    _ours: &Outcome,
) -> Option<&'static str> {
    None
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
    let is_of_mangle =
        target.policy.mode == Mode::Tproxy && target.policy.dialect.proxy_mark().is_none();
    if case.is_forwarded && is_of_mangle {
        // The rules mark every packet of an established connection that enters, also the answers to one that they
        // left alone, and the mark keeps these in the pod.
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
        let taken = *ours == Outcome::Fails(libc::EADDRNOTAVAIL);
        return taken.then_some(
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
