//! The decision about a TCP connect: the nat OUTPUT rules, in their order.

use super::{
    Decision, Outbound, Tables, Verdict, ahead::Ahead, dns, marked::marked,
    transparent::transparent,
};
use crate::{
    addr::{Addr, Family},
    dns::{DnsBlock, DnsPosition},
    pod::Route,
    policy::{DIALECT_LO_UNTOUCHED, DIALECT_LOCAL_CAPTURED, DIALECT_SELF_EXEMPT, List, NO_ID, Row},
    rule::Rule,
};

const EINVAL: i32 = 22;
const ENETUNREACH: i32 = 101;

/// The address a TCP connect really goes to. The kernel takes `0.0.0.0` for the bound address, or
/// 127.0.0.1 (`ip_route_output_key_hash_rcu`), and `::` for `::1` always (`tcp_v6_connect`).
#[inline(always)]
#[must_use]
pub const fn effective_destination(conn: &Outbound, zero: u32) -> Addr {
    if !conn.destination.is_unspecified_to(zero) {
        return conn.destination;
    }
    match conn.destination.family() {
        Family::V4 if !conn.is_bound(zero) => Addr::LOOPBACK_V4,
        Family::V4 => conn.source,
        Family::V6 => Addr::LOOPBACK_V6,
    }
}

/// Decides a TCP connect.
#[inline(always)]
#[must_use]
pub fn outbound(policy: impl Row, conn: &Outbound, tables: &impl Tables) -> Decision {
    let dialed = effective_destination(conn, policy.zero()).any(policy.zero());
    if let Some(decision) = marked(policy, conn, dialed, tables) {
        return decision;
    }
    let Some((dns, server)) = dns::for_tcp(policy, conn, dialed, tables) else {
        return Decision::refuse(Rule::NoPolicy);
    };
    if policy.is_transparent()
        && let Some(decision) = transparent(policy, conn, dialed, tables)
    {
        return decision;
    }
    let ahead = Ahead::of(policy, conn, dialed, tables, List::OwnerTcpPort);
    let decision = by_rules(policy, conn, dialed, tables, (dns, server), ahead);
    // After the rules rather than among them: a lookup on every path would double the paths that
    // the kernel's verifier has to walk.
    match decision.verdict {
        Verdict::Redirect { port, .. }
            if port != policy.inbound_port && tables.before_sidecar() =>
        {
            Decision::untouched(Rule::BeforeSidecar)
        }
        // The kernel takes the interface from the dialed address after the rules have decided (`tcp_v6_connect`). It may
        // also lead an address of the pod out of it.
        Verdict::Redirect { .. } if conn.destination.is_link_local() => {
            Decision::refuse(Rule::LinkLocal)
        }
        Verdict::Untouched if is_for_own_pod(&decision) && conn.destination.is_link_local() => {
            Decision::refuse(Rule::LinkLocal)
        }
        Verdict::Fail { .. } => decision,
        // The rules have evaluated the final address, and the header leads the packets elsewhere first.
        _ if !decision.rule.is_for_owners() && conn.routing_header => {
            Decision::refuse(Rule::RoutingHeader)
        }
        _ => decision,
    }
}

/// Whether it leaves a connection alone because its destination is an address of the pod.
#[inline(always)]
const fn is_for_own_pod(decision: &Decision) -> bool {
    matches!(
        decision.rule,
        Rule::SelfSource | Rule::NotProxyUidLocal | Rule::NotProxyGidLocal | Rule::OverLo
    )
}

/// The rules in their order.
#[inline(always)]
#[expect(
    clippy::too_many_lines,
    reason = "every split that was tried made LLVM merge paths, and the kernel's verifier then walked 6 to 70 % more instructions"
)]
fn by_rules(
    policy: impl Row,
    conn: &Outbound,
    dialed: Addr,
    tables: &impl Tables,
    (dns, server): (DnsBlock, u32),
    ahead: Ahead,
) -> Decision {
    if !conn.captured_family {
        return Decision::untouched(Rule::FamilyNotCaptured);
    }
    let route = tables.route(dialed);
    let over_lo = route.is_local();
    let bound = conn.is_bound(policy.zero());
    let source = if bound { conn.source } else { route.source };
    let source = source.of_any_family(policy.zero());
    let mut outbound_port = policy.outbound_port;
    if dns.is_instead_of_outbound() {
        outbound_port = dns.port();
    }
    let capture = |port: u16, rule: Rule, index: u32| {
        if !over_lo && let Some(decision) = before_any_rule(conn, dialed, &route, true) {
            return decision;
        }
        let verdict = Verdict::Redirect {
            port,
            source,
            dialed,
        };
        Decision::listed(verdict, rule, index)
    };

    if route.is_unknown() && !policy.is_loopback(dialed) {
        return Decision::refuse(Rule::TooManyAddresses);
    }
    if dns.captures_tcp_at(DnsPosition::First) {
        return capture(dns.port(), Rule::DnsTcp, server);
    }
    // 1
    if let Some(position) = route.excluded()
        && !conn.destination.is_link_local()
    {
        return Decision::listed(Verdict::Untouched, Rule::OutInterface, position);
    }
    if let Some(decision) = ahead.decision() {
        return decision;
    }
    // 2
    if policy.has(List::OutPortExcluded)
        && let Some(index) = tables.port(List::OutPortExcluded, conn.port)
    {
        return Decision::listed(Verdict::Untouched, Rule::OutPortExcluded, index);
    }
    let lo_untouched = policy.has_dialect(DIALECT_LO_UNTOUCHED);
    if !lo_untouched && let Some(decision) = ahead.by_port() {
        return decision;
    }
    // 3
    let loopback = policy.is_loopback(dialed);
    if over_lo && policy.has_dialect(DIALECT_SELF_EXEMPT) && source.is_self() {
        return Decision::untouched(Rule::SelfSource);
    }
    let local_captured = policy.has_dialect(DIALECT_LOCAL_CAPTURED);
    if over_lo && local_captured && !loopback {
        return capture(outbound_port, Rule::LocalCaptured, 0);
    }
    // 4 and 5. With DNS capture they pass over port 53, but for 5a.
    let tunnel = policy.is_tunnel_out(conn.port);
    let passes_dns = policy.passes_local(conn.port);
    let into_own_pod = over_lo && !loopback && !tunnel && policy.has_local_rules();
    // Unless a loopback range is included, "over lo and not the proxy's: untouched" after the first
    // owner is final for traffic over lo: later owners are not compared.
    let first_owner_only = over_lo
        && policy.loopback_included == 0
        && !local_captured
        && !passes_dns
        && policy.has_local_rules();
    let has_uid = policy.proxy_uid != NO_ID;
    if let Some(index) = proxy_owner(
        tables,
        policy,
        List::MoreProxyUids,
        policy.proxy_uid,
        conn.owner.uid,
        first_owner_only,
    ) {
        return if into_own_pod && !passes_dns {
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
        return if into_own_pod {
            capture(policy.inbound_port, Rule::ProxyGidLocal, index)
        } else {
            Decision::listed(Verdict::Untouched, Rule::ProxyGid, index)
        };
    }
    if first_owner_only && policy.proxy_gid != NO_ID {
        return Decision::untouched(Rule::NotProxyGidLocal);
    }
    if lo_untouched && over_lo {
        return Decision::untouched(Rule::OverLo);
    }
    if lo_untouched && let Some(decision) = ahead.by_port() {
        return decision;
    }
    // 6
    if let Some(decision) = by_group(policy, conn, tables) {
        return decision;
    }
    // 7
    if dns.captures_tcp_at(DnsPosition::AfterOwners) {
        return capture(dns.port(), Rule::DnsTcp, server);
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
        return capture(outbound_port, Rule::OutPortIncluded, index);
    }
    // 11
    if policy.outbound_all != 0 {
        return capture(outbound_port, Rule::AllOutbound, 0);
    }
    if policy.has(List::RangeIncluded)
        && let Some(index) = tables.range(List::RangeIncluded, dialed)
    {
        return capture(outbound_port, Rule::RangeIncluded, index);
    }
    // 12
    Decision::untouched(Rule::OutNoMatch)
}

/// The result for an off-pod connection that the kernel rejects before nat OUTPUT: with iptables
/// the route is looked up first, so no rule ever sees it. The decision is made here rather than
/// by the kernel because the ROUTE_BY_POD copy can lag behind: a connection over a route that
/// has just appeared must not bypass the sidecar.
#[inline(always)]
pub(super) fn before_any_rule(
    conn: &Outbound,
    dialed: Addr,
    route: &Route,
    is_tcp: bool,
) -> Option<Decision> {
    // Only UDP can be sent to groups.
    let group = is_tcp && dialed.is_multicast_or_broadcast();
    let has_device = route.is_unicast() || !is_tcp && route.has_device();
    let loopback_source = matches!(dialed.family(), Family::V4) && conn.source.is_loopback();
    // The kernel fails these (`__mkroute_output`), unless `route_localnet` is set.
    if loopback_source && !group && route.has_device() {
        let verdict = Verdict::Fail { errno: EINVAL };
        return Some(Decision::listed(verdict, Rule::LoopbackSource, 0));
    }
    if group || !has_device {
        let errno = if group { ENETUNREACH } else { route.errno() };
        return Some(Decision::listed(Verdict::Fail { errno }, Rule::NoRoute, 0));
    }
    None
}

/// The rules for owner groups.
#[inline(always)]
pub(super) fn by_group(
    policy: impl Row,
    conn: &Outbound,
    tables: &impl Tables,
) -> Option<Decision> {
    if policy.has(List::GroupExcluded)
        && let Some(index) = tables.owner(List::GroupExcluded, conn.owner.gid)
    {
        return Some(Decision::listed(
            Verdict::Untouched,
            Rule::GroupExcluded,
            index,
        ));
    }
    let is_omitted = policy.has(List::GroupIncluded)
        && tables.owner(List::GroupIncluded, conn.owner.gid).is_none();
    is_omitted.then_some(Decision::untouched(Rule::GroupNotIncluded))
}

/// Position among the proxy's owners, if the id is one of them.
#[inline(always)]
pub(super) fn proxy_owner(
    tables: &impl Tables,
    policy: impl Row,
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
