//! An inbound connection of a pod. If the rules capture it, the program assigns it to the sidecar's
//! listener. No packet changes, so the accepted socket's local address *is* the original destination.

use core::arch::asm;

use aya_ebpf::{
    bindings::sk_action::{SK_DROP, SK_PASS},
    macros::sk_lookup,
    programs::SkLookupContext,
};
use aya_log_ebpf::debug;
use sidetrack_common::{
    addr::{Addr, Family},
    conn::{AskedFrom, DestinationKey, HandshakeKey, ListenerKey, ON_LOOPBACK},
    decide::{self, Decision, ECONNREFUSED, Inbound, Tables as _, Verdict},
    event::EventKind,
    forward::Probe,
    names::{
        FORWARDED, LISTENER_SLOTS, LOOPBACK_OUTBOUND, LOOPBACK_SLOTS, MPTCP_INBOUND, MPTCP_OUTBOUND,
    },
    pod::{
        IfaceKey, IfaceRow, LOOPBACK_IFINDEX, POD_FORWARDS, POD_HAS_IFACE_RULES, POD_NODE_CALLS,
        POD_OWN_TARGETS, Route, RouteKey,
    },
    rule::Rule,
    target::{is_dedicated, is_shared, is_target},
};

use crate::{
    maps::{self, Enrolled, Report},
    tables::PodTables,
};
use sidetrack_ebpf::{
    ctx::{
        decision,
        sk_lookup::{SkLookup, Tuple},
    },
    probe,
};

/// Listener lookup in one pod's network namespace. It passes on the namespace's cookie and tail calls
/// [`st_inbound`].
#[sk_lookup]
pub fn st_sk_lookup(ctx: SkLookupContext) -> u32 {
    let lookup = SkLookup { inner: &ctx };
    let netns = lookup.own_netns();
    let is_forged =
        is_forged(&lookup, netns) || !lookup.is_tcp() && is_forged_answer(&lookup, netns);
    if !is_forged && !lookup.is_tcp() {
        return SK_PASS;
    }
    maps::run_inbound_program(&ctx, netns, is_forged);
    // The tail call failed: nothing may bypass the sidecar.
    SK_DROP
}

/// Whether a packet for a target comes from outside. The kernel delivers it for IPv6, and for IPv4 where `route_localnet` is
/// set, as kube-proxy does. An address of the range that another interface of the pod has is no target. Rows outlive the
/// pod, as connections do.
///
/// Here and not in [`st_inbound`]: the verifier would walk every path of that program twice.
#[inline(always)]
fn is_forged(lookup: &SkLookup<'_>, netns: u64) -> bool {
    let target = lookup.target();
    if !is_target(target.addr) {
        return false;
    }
    let Some(pod) = maps::pod(netns) else {
        return lookup.iface() != Some(LOOPBACK_IFINDEX)
            && maps::destination(&DestinationKey::new(netns, target)).is_some();
    };
    let is_sent_by_pod = match lookup.iface() {
        Some(iface) => iface == LOOPBACK_IFINDEX,
        // Before Linux 5.17. From elsewhere such a source gets no answer.
        None => {
            let source = lookup.tuple().source;
            source.is_loopback() || PodTables::of_packet(netns, pod).is_own(source)
        }
    };
    !is_sent_by_pod && !has_other_device(netns, target.addr)
}

/// Whether a datagram comes from an address that stands for a DNS server, and not from the pod's sidecar, whose answers go
/// to where they were asked from.
#[inline(always)]
fn is_forged_answer(lookup: &SkLookup<'_>, netns: u64) -> bool {
    let from = lookup.source();
    if !is_dedicated(from.addr) {
        return false;
    }
    let Some(row) = maps::destination(&DestinationKey::new(netns, from)) else {
        return false;
    };
    // For an address of the pod the interface is the one that holds it.
    let is_by_lo = row.asked_from == AskedFrom::Source as u16
        || matches!(lookup.iface(), None | Some(LOOPBACK_IFINDEX));
    !is_by_lo || !lookup.target().addr.is(row.asked_from(from.addr))
}

/// Whether an interface other than lo has the address.
#[inline(always)]
fn has_other_device(netns: u64, addr: Addr) -> bool {
    maps::route(&RouteKey::host((netns, 0), addr))
        .is_some_and(|route| route.is_local() && route.ifindex != LOOPBACK_IFINDEX)
}

/// The decision about inbound connections, one program for all pods.
#[sk_lookup]
pub fn st_inbound(ctx: SkLookupContext) -> u32 {
    let lookup = SkLookup { inner: &ctx };
    let Some((netns, is_forged)) = maps::inbound_netns(lookup.inner) else {
        return SK_DROP;
    };
    let Some(pod) = maps::pod(netns) else {
        return if is_forged { SK_DROP } else { SK_PASS };
    };
    let inbound = InboundPacket {
        lookup: &lookup,
        tuple: lookup.tuple(),
        netns,
        pod,
    };
    if is_forged {
        inbound.count(Rule::UnknownTarget, 0);
        inbound.report((Rule::UnknownTarget, 0), 0, ECONNREFUSED);
        return SK_DROP;
    }
    let question = inbound.question();
    if matches!(question, Question::SkipEstablished) {
        return SK_PASS;
    }
    if matches!(question, Question::NotServed) {
        inbound.not_served();
        return SK_DROP;
    }
    let decision = match inbound.decide() {
        Ok(decision) => decision,
        Err(rule) => Decision::refuse(rule),
    };
    let (capture_port, errno, is_assigned) = match decision.verdict {
        Verdict::Redirect { port, .. } => (port, 0, inbound.assign(port).is_ok()),
        Verdict::Fail { errno } => (0, errno, true),
        Verdict::Untouched | Verdict::Assign { .. } | Verdict::BindToLoopback | Verdict::Mark => {
            (0, 0, true)
        }
    };
    // On SK_DROP the client gets a reset: connection refused, as when the sidecar is down.
    let action = if errno == 0 && is_assigned {
        SK_PASS
    } else {
        SK_DROP
    };
    let mut is_served = is_assigned;
    if let Question::Decide { is_own } = question {
        if !is_own && capture_port != 0 {
            maps::set_sidecar(netns, FORWARDED, true);
        }
        if !is_assigned && maps::sidecar_has(netns, MPTCP_INBOUND | MPTCP_OUTBOUND) {
            is_served = true;
            probe::answer_at_port(capture_port);
        } else {
            probe::set_probe(if action == SK_DROP {
                Probe::Refused
            } else if capture_port == 0 {
                Probe::Untouched
            } else if is_own {
                Probe::RedirectedOwn
            } else {
                Probe::Redirected
            });
        }
    }
    // The pod's own traffic was decided and counted in connect. Every connection counts once.
    if !matches!(decision.rule, Rule::LocalSource) && !maps::is_repeated(&inbound.key()) {
        inbound.count(decision.rule, decision.index);
        if errno != 0 || maps::is_traced() {
            inbound.report((decision.rule, decision.index), capture_port, errno);
        }
        // As in iptables the rule has redirected the connection, and counts it. That no listener accepts it counts as well.
        if !is_served {
            inbound.not_served();
        }
        debug!(
            &ctx,
            "inbound netns={} port={} rule={} action={}",
            netns,
            inbound.tuple.port,
            decision.rule as u32,
            action
        );
    }
    action
}

/// What the program of forwarded packets wants to know.
enum Question {
    /// It does not ask: the packet is being delivered.
    NotAsked,
    /// The decision about a SYN, for an address of the pod or another.
    Decide { is_own: bool },
    /// No decision: the packet begins no connection.
    SkipEstablished,
    /// Another lookup after the decision found no listener.
    NotServed,
}

/// A packet that belongs to no established connection, and the pod that it came to.
struct InboundPacket<'a> {
    lookup: &'a SkLookup<'a>,
    tuple: Tuple,
    netns: u64,
    pod: Enrolled,
}

impl InboundPacket<'_> {
    #[inline(always)]
    fn question(&self) -> Question {
        if self.pod.flags & (POD_FORWARDS | POD_NODE_CALLS) == 0 {
            return Question::NotAsked;
        }
        let asked = probe::probe();
        if asked == Probe::Established as u32 {
            return Question::SkipEstablished;
        }
        if asked == Probe::NotServed as u32 {
            return Question::NotServed;
        }
        if asked != Probe::Syn as u32 {
            return Question::NotAsked;
        }
        let key = RouteKey::host((self.netns, 0), self.tuple.destination);
        let is_own = maps::route(&key).is_some_and(Route::is_local);
        Question::Decide { is_own }
    }

    #[inline(always)]
    fn decide(&self) -> Result<Decision, Rule> {
        let policy = maps::policy(self.pod.policy).ok_or(Rule::NoPolicy)?;
        let Tuple {
            source,
            destination,
            port,
            ..
        } = self.tuple;
        // A redirected IPv6 connection, one of the proxy to a translated address, or to its own pod in mode TPROXY.
        let is_translated = maps::has_translation() && !destination.is_loopback();
        if (destination.is(Addr::LOOPBACK_V6) || is_translated || policy.is_transparent())
            && let Some(capture_port) = self.redirected_to()
        {
            // Both ways it is the pod's own connection, which connect has counted.
            let assigned = self.assign(capture_port);
            let assigned = assigned.or_else(|()| self.assign_on_loopback(capture_port));
            assigned.map_err(|()| Rule::LocalSource)?;
            return Ok(Decision::untouched(Rule::LocalSource));
        }
        if port == policy.outbound_port && is_target(destination) {
            let is_shared = self.pod.flags & POD_OWN_TARGETS != 0 && is_shared(destination);
            if is_shared && self.is_unknown() {
                return Err(Rule::UnknownTarget);
            }
            if maps::sidecar_has(self.netns, LOOPBACK_OUTBOUND) {
                // Without one the kernel finds no listener either, and refuses the connection.
                let _ = self.assign_on_loopback(port);
                return Ok(Decision::untouched(Rule::LocalSource));
            }
        }
        // Only the pod itself sends by lo, also from an address that the agent does not know yet; in mode TPROXY the sidecar
        // calls the app from the client's. The kernel takes lo for the ingress interface of sockets that are bound to it
        // alone.
        if self.lookup.iface() == Some(LOOPBACK_IFINDEX) {
            return Ok(Decision::untouched(Rule::LocalSource));
        }
        let syn = Inbound {
            source,
            destination,
            port,
            iface: self.iface(),
            captured_family: self.pod.captures(destination.family()),
        };
        let tables = PodTables::of_packet(self.netns, self.pod);
        let decision = decide::inbound(policy, &syn, &tables);
        Ok(decision::any(decision, policy))
    }

    /// Whether nothing says what was dialed: connection tracking, or another program, has changed the tuple since.
    /// The sidecar would take its own port for the destination.
    #[inline(always)]
    fn is_unknown(&self) -> bool {
        maps::handshake(&self.key()).is_none()
    }

    /// The capture port of a connection of the pod's own that is to reach it although it goes to another port.
    #[inline(always)]
    fn redirected_to(&self) -> Option<u16> {
        let port = maps::handshake(&self.key())?.capture_port;
        (port != self.tuple.port).then_some(port)
    }

    #[inline(always)]
    fn key(&self) -> HandshakeKey {
        let client = (self.tuple.source, self.tuple.source_port);
        HandshakeKey::new(
            self.netns,
            client,
            (self.tuple.destination, self.tuple.port),
        )
    }

    #[inline(always)]
    fn family(&self) -> Family {
        self.tuple.destination.family()
    }

    /// Assigns the connection to the first listener that takes it.
    #[inline(always)]
    fn assign(&self, port: u16) -> Result<(), ()> {
        self.assign_to(self.family() as u16, port, LISTENER_SLOTS)
    }

    /// The same to the listeners on loopback, for connections of the pod's own.
    #[inline(always)]
    fn assign_on_loopback(&self, port: u16) -> Result<(), ()> {
        self.assign_to(self.family() as u16 | ON_LOOPBACK, port, LOOPBACK_SLOTS)
    }

    #[inline(always)]
    fn assign_to(&self, family: u16, port: u16, slots: u32) -> Result<(), ()> {
        let mut failed = 1_u32;
        for slot in 0..slots {
            let key = ListenerKey {
                netns: self.netns,
                family,
                port,
                slot,
            };
            if maps::assign_listener(self.lookup.inner.lookup, &key).is_ok() {
                failed = 0;
                break;
            }
        }
        // Otherwise LLVM keeps the slot, and derives the result from it wherever that is used: verifiers before Linux 6.2
        // then walk all that follows once for each slot, and reject the program.
        // SAFETY: it contains no instruction.
        unsafe {
            asm!("", inout("r2") failed, options(nomem, nostack, preserves_flags));
        }
        if failed == 0 { Ok(()) } else { Err(()) }
    }

    #[inline(always)]
    fn iface(&self) -> IfaceRow {
        if self.pod.flags & POD_HAS_IFACE_RULES == 0 {
            return IfaceRow::PLAIN;
        }
        let Some(ifindex) = self.lookup.iface() else {
            return IfaceRow::PLAIN;
        };
        let key = IfaceKey {
            netns: self.netns,
            ifindex,
            pad: 0,
        };
        maps::iface(&key).unwrap_or(IfaceRow::PLAIN)
    }

    #[inline(always)]
    fn count(&self, rule: Rule, index: u32) {
        maps::count(self.netns, self.pod, self.family(), rule, index);
    }

    /// Counts that no listener accepts a connection that the rules capture.
    #[inline(always)]
    fn not_served(&self) {
        self.count(Rule::NoListener, 0);
        self.report((Rule::NoListener, 0), 0, ECONNREFUSED);
    }

    /// Remembers a refusal, and passes the decision to those who trace.
    #[inline(always)]
    fn report(&self, (rule, index): (Rule, u32), capture_port: u16, errno: i32) {
        maps::report(&Report {
            netns: self.netns,
            cookie: 0,
            source: self.tuple.source,
            destination: self.tuple.destination,
            source_port: self.tuple.source_port,
            destination_port: self.tuple.port,
            capture_port,
            kind: EventKind::Inbound,
            rule,
            index,
            errno,
            owner: None,
        });
    }
}
