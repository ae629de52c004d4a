//! An inbound connection of a pod. If the rules capture it, the program assigns it to the sidecar's
//! listener. No packet changes, so the accepted socket's local address *is* the original destination.

use aya_ebpf::{
    bindings::sk_action::{SK_DROP, SK_PASS},
    macros::sk_lookup,
    programs::SkLookupContext,
};
use aya_log_ebpf::debug;
use sidetrack_common::{
    addr::{Addr, Family},
    conn::{HandshakeKey, ListenerKey},
    decide::{self, Decision, ECONNREFUSED, Inbound, Owner, Verdict},
    event::EventKind,
    forward::Probe,
    names::LISTENER_SLOTS,
    pod::{
        IfaceKey, IfaceRow, POD_FORWARDS, POD_HAS_IFACE_RULES, POD_OWN_TARGETS, Pod, Route,
        RouteKey,
    },
    rule::Rule,
    target::is_shared,
};

use crate::{
    ctx::sk_lookup::SkLookup,
    maps::{self, Report},
    tables::PodTables,
};

/// Index of lo in every network namespace (`LOOPBACK_IFINDEX` of include/net/flow.h).
const LOOPBACK_IFINDEX: u32 = 1;

/// Listener lookup in one pod's network namespace. It passes on the namespace's cookie and tail calls
/// [`st_arrival`].
#[sk_lookup]
pub fn st_sk_lookup(ctx: SkLookupContext) -> u32 {
    let lookup = SkLookup { inner: &ctx };
    if !lookup.is_tcp() {
        return SK_PASS;
    }
    maps::run_inbound_program(&ctx, lookup.own_netns());
    // The tail call failed: nothing may bypass the sidecar.
    SK_DROP
}

/// The decision about inbound connections, one program for all pods.
#[sk_lookup]
pub fn st_arrival(ctx: SkLookupContext) -> u32 {
    let lookup = SkLookup { inner: &ctx };
    let netns = lookup.take_netns();
    if netns == 0 {
        return SK_DROP;
    }
    let Some(pod) = maps::pod(netns) else {
        return SK_PASS;
    };
    let question = question(&lookup, netns, pod);
    if matches!(question, Question::Nothing) {
        return SK_PASS;
    }
    let decision = match try_lookup(&lookup, netns, pod) {
        Ok(decision) => decision,
        Err(rule) => Decision::refuse(rule),
    };
    let family = lookup.destination().family();
    let (capture_port, errno, is_served) = match decision.verdict {
        Verdict::Redirect { port, .. } => (port, 0, assign(&lookup, netns, family, port).is_ok()),
        Verdict::Fail { errno } => (0, errno, true),
        Verdict::Untouched | Verdict::Assign { .. } | Verdict::ByLoopback => (0, 0, true),
    };
    // On SK_DROP the client gets a reset: connection refused, as when the sidecar is down.
    let action = if errno == 0 && is_served {
        SK_PASS
    } else {
        SK_DROP
    };
    if let Question::Decide { is_own } = question {
        maps::set_probe(if action == SK_DROP {
            Probe::Refused
        } else if capture_port == 0 {
            Probe::Untouched
        } else if is_own {
            Probe::RedirectedOwn
        } else {
            Probe::Redirected
        });
    }
    // The pod's own traffic was decided and counted in connect. Every connection counts once.
    if !matches!(decision.rule, Rule::LocalSource) && !maps::has_arrived(&key(&lookup, netns)) {
        maps::count(netns, pod, family, decision.rule, decision.index);
        if errno != 0 || maps::is_traced() {
            let decided = (decision.rule, decision.index);
            report(&lookup, netns, decided, capture_port, errno);
        }
        // As in iptables the rule has redirected the connection, and counts it. That nobody takes it comes on top.
        if !is_served {
            maps::count(netns, pod, family, Rule::NoListener, 0);
            report(&lookup, netns, (Rule::NoListener, 0), 0, ECONNREFUSED);
        }
        debug!(
            &ctx,
            "inbound netns={} port={} rule={} action={}",
            netns,
            lookup.port(),
            decision.rule as u32,
            action
        );
    }
    action
}

/// What the program of forwarded packets wants to know.
enum Question {
    /// It does not ask: the packet is being delivered.
    None,
    /// The decision about a SYN, for an address of the pod or another.
    Decide { is_own: bool },
    /// No decision: the packet begins no connection.
    Nothing,
}

#[inline(always)]
fn question(lookup: &SkLookup<'_>, netns: u64, pod: &Pod) -> Question {
    if pod.flags & POD_FORWARDS == 0 {
        return Question::None;
    }
    let asked = maps::probe();
    if asked == Probe::Established as u32 {
        return Question::Nothing;
    }
    if asked != Probe::Syn as u32 {
        return Question::None;
    }
    let key = RouteKey::host(netns, lookup.destination());
    let is_own = maps::route(&key).is_some_and(Route::is_local);
    Question::Decide { is_own }
}

/// Remembers a refusal, and passes the decision to those who trace.
#[inline(always)]
fn report(
    lookup: &SkLookup<'_>,
    netns: u64,
    (rule, index): (Rule, u32),
    capture_port: u16,
    errno: i32,
) {
    maps::report(&Report {
        netns,
        cookie: 0,
        source: lookup.source(),
        destination: lookup.destination(),
        source_port: lookup.source_port(),
        destination_port: lookup.port(),
        capture_port,
        kind: EventKind::Inbound,
        rule,
        index,
        errno,
        owner: Owner::UNKNOWN,
    });
}

#[inline(always)]
fn try_lookup(lookup: &SkLookup<'_>, netns: u64, pod: &Pod) -> Result<Decision, Rule> {
    let policy = maps::policy(pod.policy).ok_or(Rule::NoPolicy)?;
    let destination = lookup.destination();
    // A redirected IPv6 connection, one of the proxy to a translated address, or to its own pod in mode TPROXY.
    let is_translated = maps::has_translation() && !destination.is_loopback();
    if (destination.is(Addr::LOOPBACK_V6) || is_translated || policy.is_transparent())
        && let Some(port) = redirected_to(lookup, netns)
    {
        // Both ways it is the pod's own connection, which connect has counted.
        assign(lookup, netns, destination.family(), port).map_err(|()| Rule::LocalSource)?;
        return Ok(Decision::untouched(Rule::LocalSource));
    }
    // The sidecar calls the app from the client's address. Only the pod itself sends by lo, and the kernel takes
    // that for the ingress interface of sockets that are bound to it alone.
    if policy.is_transparent() && lookup.iface() == Some(LOOPBACK_IFINDEX) {
        return Ok(Decision::untouched(Rule::LocalSource));
    }
    let is_target = pod.flags & POD_OWN_TARGETS != 0 && is_shared(destination);
    if is_target && lookup.port() == policy.outbound_port && is_unknown(lookup, netns) {
        return Err(Rule::UnknownTarget);
    }
    let syn = Inbound {
        source: lookup.source(),
        destination,
        port: lookup.port(),
        iface: iface(lookup, netns, pod),
        captured_family: pod.captures(destination.family()),
    };
    let tables = PodTables {
        netns,
        policy: pod.policy,
        flags: pod.flags,
    };
    Ok(decide::inbound(policy, &syn, &tables))
}

/// Whether nothing says what was dialed: connection tracking, or another program, has changed the tuple since.
/// The sidecar would take its own port for the destination.
#[inline(always)]
fn is_unknown(lookup: &SkLookup<'_>, netns: u64) -> bool {
    maps::handshake(&key(lookup, netns)).is_none()
}

/// The capture port of a connection of the pod's own that is to reach it although it goes to another port.
#[inline(always)]
fn redirected_to(lookup: &SkLookup<'_>, netns: u64) -> Option<u16> {
    let port = maps::handshake(&key(lookup, netns))?.capture_port;
    (port != lookup.port()).then_some(port)
}

#[inline(always)]
fn key(lookup: &SkLookup<'_>, netns: u64) -> HandshakeKey {
    HandshakeKey {
        netns,
        client: lookup.source(),
        client_port: lookup.source_port(),
        target_port: lookup.port(),
        target_word: lookup.destination().to_v4_be(),
    }
}

/// Assigns the connection to the first listener that takes it.
#[inline(always)]
fn assign(lookup: &SkLookup<'_>, netns: u64, family: Family, port: u16) -> Result<(), ()> {
    for slot in 0..LISTENER_SLOTS {
        let key = ListenerKey {
            netns,
            family: family as u16,
            port,
            slot,
        };
        if lookup.assign(&key).is_ok() {
            return Ok(());
        }
    }
    Err(())
}

#[inline(always)]
fn iface(lookup: &SkLookup<'_>, netns: u64, pod: &Pod) -> IfaceRow {
    if pod.flags & POD_HAS_IFACE_RULES == 0 {
        return IfaceRow::PLAIN;
    }
    let Some(ifindex) = lookup.iface() else {
        return IfaceRow::PLAIN;
    };
    let key = IfaceKey {
        netns,
        ifindex,
        pad: 0,
    };
    maps::iface(&key).unwrap_or(IfaceRow::PLAIN)
}
