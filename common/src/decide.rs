//! The decision: what becomes of a connection. One pure function per direction, used by the kernel
//! programs, by `explain` and by tests.
//!
//! Source of the rule order: `istio-iptables` of Istio 1.18 and later (the *current* dialect of
//! docs/semantics.md), as its nat OUTPUT and PREROUTING rules judge the first packet of a
//! connection; older versions differ in the `DIALECT_*` bits of the policy. Rule numbers in comments
//! are those of that document.

use crate::{
    addr::{Addr, Family},
    pod::{IfaceRow, IfaceRule, Route},
    policy::{
        DIALECT_LOCAL_CAPTURED, DIALECT_SELF_EXEMPT, DIALECT_SSH_IN, DIALECT_TUNNEL_IN,
        DIALECT_TUNNEL_OUT, InboundMode, List, NO_ID, Policy,
    },
    rule::Rule,
};

const SSH_PORT: u16 = 22;

/// Table lookups the decision needs: maps in the kernel, plain collections elsewhere.
///
/// List lookups answer the entry's position in the list as written.
pub trait Tables {
    /// The port's entry in one of the policy's port lists.
    fn port(&self, list: List, port: u16) -> Option<u32>;
    /// The entry of one of the policy's CIDR lists that holds the address.
    fn range(&self, list: List, addr: Addr) -> Option<u32>;
    /// The id's entry in one of the policy's owner lists.
    fn owner(&self, list: List, id: u32) -> Option<u32>;
    /// The pod's route to the address, [`Route::NONE`] if there is none.
    fn route(&self, addr: Addr) -> Route;
    /// Whether the pod is to reach the network by itself until its sidecar first listens, and it has
    /// not yet.
    fn before_sidecar(&self) -> bool;
}

/// The process that created a socket, as netfilter's owner match sees it: filesystem uid and gid of
/// the creator, [`NO_ID`] for sockets the kernel itself opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// fsuid in the host's numbering.
    pub uid: u32,
    /// fsgid in the host's numbering; supplementary groups do not count.
    pub gid: u32,
}

/// A TCP connect about to happen in a pod.
#[derive(Clone, Copy, Debug)]
pub struct Outbound {
    /// Who created the socket.
    pub owner: Owner,
    /// The address the application bound, unspecified if it bound none.
    pub source: Addr,
    /// The address it dials.
    pub destination: Addr,
    /// The port it dials, host order.
    pub port: u16,
    /// SO_BINDTODEVICE: interface index, 0 if not set.
    pub bound_device: u32,
    /// Whether the pod has rules for the destination's family.
    pub captured_family: bool,
}

/// A SYN that arrived for a pod.
#[derive(Clone, Copy, Debug)]
pub struct Inbound {
    /// The sender.
    pub source: Addr,
    /// The address it was sent to.
    pub destination: Addr,
    /// The port it was sent to, host order.
    pub port: u16,
    /// What the policy says of the interface it arrived on.
    pub iface: IfaceRow,
    /// Whether the pod has rules for the family.
    pub captured_family: bool,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes where it was going.
    Untouched,
    /// It goes to the sidecar's capture port.
    Redirect {
        /// Capture port, host order.
        port: u16,
        /// Address the connecting socket gets if it is not bound; unspecified: leave it to the
        /// kernel. Meaningless for arrivals.
        source: Addr,
        /// The address dialed, `0.0.0.0` and `::` resolved to what they mean.
        dialed: Addr,
    },
    /// It fails.
    Fail {
        /// What the caller gets; arrivals are always refused with a reset.
        errno: i32,
    },
}

/// `ECONNREFUSED`: what a sidecar that is down looks like.
pub const ECONNREFUSED: i32 = 111;
const ENETUNREACH: i32 = 101;

/// A verdict and what gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happens.
    pub verdict: Verdict,
    /// Why.
    pub rule: Rule,
    /// Position in the rule's list, 0 for rules without one.
    pub index: u32,
}

impl Decision {
    #[inline(always)]
    const fn untouched(rule: Rule) -> Self {
        Self::listed(Verdict::Untouched, rule, 0)
    }

    #[inline(always)]
    const fn listed(verdict: Verdict, rule: Rule, index: u32) -> Self {
        Self {
            verdict,
            rule,
            index,
        }
    }

    /// A refusal for a reason outside the rules: something the decision needs is missing.
    #[inline(always)]
    #[must_use]
    pub const fn refuse(rule: Rule) -> Self {
        Self::listed(
            Verdict::Fail {
                errno: ECONNREFUSED,
            },
            rule,
            0,
        )
    }
}

/// The address a TCP connect really goes to. The kernel takes `0.0.0.0` for the bound address, or
/// 127.0.0.1 (`ip_route_output_key_hash_rcu`), and `::` for `::1` always (`tcp_v6_connect`).
#[inline(always)]
#[must_use]
pub const fn effective_destination(conn: &Outbound) -> Addr {
    if !conn.destination.is_unspecified() {
        return conn.destination;
    }
    match conn.destination.family() {
        Family::V4 if conn.source.is_unspecified() => Addr::LOOPBACK_V4,
        Family::V4 => conn.source,
        Family::V6 => Addr::LOOPBACK_V6,
    }
}

/// Decides a TCP connect.
#[inline(always)]
#[must_use]
pub fn outbound(policy: &Policy, conn: &Outbound, tables: &impl Tables) -> Decision {
    let decision = by_rules(policy, conn, tables);
    // After the rules rather than among them: asked for on every path, it would double the paths that
    // the kernel's verifier has to walk.
    match decision.verdict {
        Verdict::Redirect { port, .. }
            if port == policy.outbound_port && tables.before_sidecar() =>
        {
            Decision::untouched(Rule::BeforeSidecar)
        }
        _ => decision,
    }
}

#[inline(always)]
fn by_rules(policy: &Policy, conn: &Outbound, tables: &impl Tables) -> Decision {
    if !conn.captured_family {
        return Decision::untouched(Rule::FamilyNotCaptured);
    }
    let dialed = effective_destination(conn);
    let route = tables.route(dialed);
    let over_lo = route.is_local();
    let bound = !conn.source.is_unspecified();
    let source = if bound { conn.source } else { route.source };
    let capture = |port: u16, rule: Rule, index: u32| {
        if !over_lo && let Some(decision) = before_any_rule(conn, dialed, &route) {
            return decision;
        }
        let verdict = Verdict::Redirect {
            port,
            source,
            dialed,
        };
        Decision::listed(verdict, rule, index)
    };

    // 1
    if let Some(position) = route.excluded() {
        return Decision::listed(Verdict::Untouched, Rule::OutInterface, position);
    }
    // 2
    if policy.has(List::OutPortExcluded)
        && let Some(index) = tables.port(List::OutPortExcluded, conn.port)
    {
        return Decision::listed(Verdict::Untouched, Rule::OutPortExcluded, index);
    }
    // 3
    let loopback = policy.is_loopback(dialed);
    if over_lo
        && policy.speaks(DIALECT_SELF_EXEMPT)
        && (source.is(Addr::SELF_V4) || source.is(Addr::SELF_V6))
    {
        return Decision::untouched(Rule::SelfSource);
    }
    let local_captured = policy.speaks(DIALECT_LOCAL_CAPTURED);
    if over_lo && local_captured && !loopback {
        return capture(policy.outbound_port, Rule::LocalCaptured, 0);
    }
    // 4 and 5
    let tunnel = conn.port == policy.tunnel_port && policy.speaks(DIALECT_TUNNEL_OUT);
    let turns_back = over_lo && !loopback && !tunnel;
    // Unless a loopback range is included, "over lo and not mine: untouched" after the first owner
    // ends the matter for traffic over lo: later owners never see it.
    let first_owner_only = over_lo && policy.loopback_included == 0 && !local_captured;
    let has_uid = policy.proxy_uid != NO_ID;
    if let Some(index) = proxy_owner(
        tables,
        policy,
        List::MoreProxyUids,
        policy.proxy_uid,
        conn.owner.uid,
        first_owner_only,
    ) {
        return if turns_back {
            capture(policy.inbound_port, Rule::ProxyUidLocal, index)
        } else {
            Decision::listed(Verdict::Untouched, Rule::ProxyUid, index)
        };
    }
    if first_owner_only && has_uid {
        return Decision::untouched(Rule::NotProxyUidLocal);
    }
    if let Some(index) = proxy_owner(
        tables,
        policy,
        List::MoreProxyGids,
        policy.proxy_gid,
        conn.owner.gid,
        first_owner_only,
    ) {
        return if turns_back {
            capture(policy.inbound_port, Rule::ProxyGidLocal, index)
        } else {
            Decision::listed(Verdict::Untouched, Rule::ProxyGid, index)
        };
    }
    if first_owner_only && policy.proxy_gid != NO_ID {
        return Decision::untouched(Rule::NotProxyGidLocal);
    }
    // 6
    if policy.has(List::GroupExcluded)
        && let Some(index) = tables.owner(List::GroupExcluded, conn.owner.gid)
    {
        return Decision::listed(Verdict::Untouched, Rule::GroupExcluded, index);
    }
    if policy.has(List::GroupIncluded)
        && tables.owner(List::GroupIncluded, conn.owner.gid).is_none()
    {
        return Decision::untouched(Rule::GroupNotIncluded);
    }
    // 8
    if loopback {
        return Decision::untouched(Rule::Loopback);
    }
    // 9
    if policy.has(List::RangeExcluded)
        && let Some(index) = tables.range(List::RangeExcluded, dialed)
    {
        return Decision::listed(Verdict::Untouched, Rule::RangeExcluded, index);
    }
    // 10
    if policy.has(List::OutPortIncluded)
        && let Some(index) = tables.port(List::OutPortIncluded, conn.port)
    {
        return capture(policy.outbound_port, Rule::OutPortIncluded, index);
    }
    // 11
    if policy.outbound_all != 0 {
        return capture(policy.outbound_port, Rule::AllOutbound, 0);
    }
    if policy.has(List::RangeIncluded)
        && let Some(index) = tables.range(List::RangeIncluded, dialed)
    {
        return capture(policy.outbound_port, Rule::RangeIncluded, index);
    }
    // 12
    Decision::untouched(Rule::OutNoMatch)
}

/// What becomes of an off-pod connection that the rules would capture but never get to see: with
/// rules in nat OUTPUT the route is looked up first. The answer is given here rather than left to
/// the kernel, because our copy of the routes may be a moment behind: nothing may slip past the
/// sidecar on a route that has just appeared.
#[inline(always)]
fn before_any_rule(conn: &Outbound, dialed: Addr, route: &Route) -> Option<Decision> {
    let group = dialed.is_multicast_or_broadcast();
    let loopback_source = matches!(dialed.family(), Family::V4) && conn.source.is_loopback();
    // The kernel never sends these (`__mkroute_output`).
    if loopback_source && !group && route.has_device() {
        return Some(Decision::untouched(Rule::LoopbackSource));
    }
    if group || !route.is_unicast() {
        let errno = if group { ENETUNREACH } else { route.errno() };
        return Some(Decision::listed(Verdict::Fail { errno }, Rule::NoRoute, 0));
    }
    if conn.bound_device != 0 {
        return Some(Decision::untouched(Rule::BoundDevice));
    }
    None
}

/// Position among the proxy's owners, if the id is one of them.
#[inline(always)]
fn proxy_owner(
    tables: &impl Tables,
    policy: &Policy,
    more: List,
    first: u32,
    id: u32,
    first_only: bool,
) -> Option<u32> {
    if id == NO_ID {
        return None;
    }
    if id == first {
        return Some(0);
    }
    if first_only || !policy.has(more) {
        return None;
    }
    tables.owner(more, id)
}

/// [`Decision::index`] of [`Rule::VirtualInterface`], which has a line for each interface and range:
/// the positions of both.
#[inline(always)]
#[must_use]
pub const fn virtual_index(interface: u32, range: u32) -> u32 {
    const RANGE_BITS: u32 = 20;
    interface << RANGE_BITS | range & ((1 << RANGE_BITS) - 1)
}

/// Decides a SYN that was delivered to the pod.
#[inline(always)]
#[must_use]
pub fn inbound(policy: &Policy, syn: &Inbound, tables: &impl Tables) -> Decision {
    if !syn.captured_family {
        return Decision::untouched(Rule::FamilyNotCaptured);
    }
    // The ingress interface does not tell traffic over lo: for an own address sk_lookup reports
    // the interface that holds it. The source does, because the kernel drops packets from outside
    // that claim an own address.
    if syn.source.is_loopback() || tables.route(syn.source).is_local() {
        return Decision::untouched(Rule::LocalSource);
    }
    let capture = |port: u16, rule: Rule, index: u32| {
        let verdict = Verdict::Redirect {
            port,
            source: Addr::UNSPECIFIED,
            dialed: syn.destination,
        };
        Decision::listed(verdict, rule, index)
    };
    let position = syn.iface.position;
    // 1
    if syn.iface.rule == IfaceRule::Virtual as u32 {
        let (rule, none) = (Rule::VirtualInterface, Rule::VirtualInterfaceNoMatch);
        if policy.outbound_all != 0 {
            return capture(policy.outbound_port, rule, virtual_index(position, 0));
        }
        if policy.has(List::RangeIncluded)
            && let Some(range) = tables.range(List::RangeIncluded, syn.destination)
        {
            return capture(policy.outbound_port, rule, virtual_index(position, range));
        }
        return Decision::listed(Verdict::Untouched, none, position);
    }
    // 2
    if syn.iface.rule == IfaceRule::Excluded as u32 {
        return Decision::listed(Verdict::Untouched, Rule::InInterface, position);
    }
    // 3
    if policy.inbound == InboundMode::Off as u8 {
        return Decision::untouched(Rule::InboundOff);
    }
    // 4
    if syn.port == policy.tunnel_port && policy.speaks(DIALECT_TUNNEL_IN) {
        return Decision::untouched(Rule::TunnelPort);
    }
    if syn.port == SSH_PORT
        && policy.inbound == InboundMode::AllExcept as u8
        && policy.speaks(DIALECT_SSH_IN)
    {
        return Decision::untouched(Rule::SshPort);
    }
    let listed = if policy.has(List::InPort) {
        tables.port(List::InPort, syn.port)
    } else {
        None
    };
    // 5
    if policy.inbound == InboundMode::AllExcept as u8 {
        return match listed {
            Some(index) => Decision::listed(Verdict::Untouched, Rule::InPortExcluded, index),
            None => capture(policy.inbound_port, Rule::AllInbound, 0),
        };
    }
    // 6
    match listed {
        Some(index) => capture(policy.inbound_port, Rule::InPortIncluded, index),
        None => Decision::untouched(Rule::InNoMatch),
    }
}

#[cfg(test)]
mod tests;
