//! The decisions about DNS: UDP has only these rules.

use super::{
    Decision, Outbound, Tables, Verdict,
    ahead::Ahead,
    marked,
    outbound::{before_any_rule, by_group, effective_destination, proxy_owner},
};
use crate::{
    addr::Addr,
    dns::{DNS_PORT, DnsBlock, DnsPosition},
    pod::Route,
    policy::{DIALECT_LO_UNTOUCHED, DIALECT_SELF_EXEMPT, List, NO_ID, Row},
    rule::Rule,
};

/// The rules for DNS as far as they concern a TCP connection, and the position of its destination among the servers. Both
/// are 0 if there are none. `None` if they are missing.
#[inline(always)]
pub(super) fn for_tcp(
    policy: impl Row,
    conn: &Outbound,
    dialed: Addr,
    tables: &impl Tables,
) -> Option<(DnsBlock, u32)> {
    let mut rules = (policy.zero(), policy.zero());
    if conn.port == DNS_PORT && policy.has(List::Dns) {
        let block = tables.port(List::Dns, DNS_PORT)?;
        // With rules for DNS this is the only destination over lo that is not redirected.
        let is_untouched = policy.has_dialect(DIALECT_LO_UNTOUCHED) && policy.is_loopback(dialed);
        if !is_untouched && let Some(server) = tables.range(List::DnsServer, dialed) {
            rules = (block, server);
        }
    }
    Some((DnsBlock::from_bits(rules.0), rules.1))
}

/// The position of a destination among the servers, [`NO_ID`] if it is none. A number rather than an option, see
/// `transparent`.
#[inline(always)]
fn server(dialed: Addr, tables: &impl Tables) -> u32 {
    let mut position = NO_ID;
    if let Some(found) = tables.range(List::DnsServer, dialed) {
        position = found;
    }
    position
}

/// Decides the connect of a UDP socket, or a datagram of one that is not connected.
#[inline(always)]
#[must_use]
pub fn udp(policy: impl Row, conn: &Outbound, tables: &impl Tables) -> Decision {
    let other = Decision::untouched(Rule::Udp);
    if conn.port != DNS_PORT || !policy.has(List::Dns) {
        return other;
    }
    let Some(block) = tables.port(List::Dns, DNS_PORT).map(DnsBlock::from_bits) else {
        return Decision::refuse(Rule::NoPolicy);
    };
    if !block.has_udp() {
        return other;
    }
    if let Some(index) = marked::position(policy, conn, tables) {
        return Decision::listed(Verdict::Untouched, Rule::ProxyMark, index);
    }
    if !conn.captured_family {
        return Decision::untouched(Rule::FamilyNotCaptured);
    }
    let dialed = effective_destination(conn, policy.zero());
    let route = tables.route(dialed);
    if route.is_unknown() && !policy.is_loopback(dialed) {
        return Decision::refuse(Rule::TooManyAddresses);
    }
    let decision = by_rules(policy, conn, tables, block, &route);
    match decision.verdict {
        Verdict::Redirect { .. } if tables.before_sidecar() => {
            Decision::untouched(Rule::BeforeSidecar)
        }
        _ => decision,
    }
}

#[inline(always)]
fn by_rules(
    policy: impl Row,
    conn: &Outbound,
    tables: &impl Tables,
    block: DnsBlock,
    route: &Route,
) -> Decision {
    let dialed = effective_destination(conn, policy.zero());
    let bound = conn.is_bound(policy.zero());
    let source = if bound { conn.source } else { route.source };
    let server = server(dialed, tables);
    let capture = || {
        if !route.is_local()
            && let Some(decision) = before_any_rule(conn, dialed, route, false)
        {
            return decision;
        }
        let verdict = Verdict::Redirect {
            port: block.port(),
            source,
            dialed,
        };
        Decision::listed(verdict, Rule::DnsUdp, server)
    };
    if route.is_local() && policy.has_dialect(DIALECT_LO_UNTOUCHED) {
        return Decision::untouched(Rule::OverLo);
    }
    if server != NO_ID && block.is_at(DnsPosition::First) {
        return capture();
    }
    if let Some(position) = route.excluded() {
        return Decision::listed(Verdict::Untouched, Rule::OutInterface, position);
    }
    if let Some(decision) = Ahead::of(policy, conn, dialed, tables, List::OwnerUdpPort).decision() {
        return decision;
    }
    if block.has_udp_exclusions() {
        if policy.has(List::OutPortExcluded)
            && let Some(index) = tables.port(List::OutPortExcluded, conn.port)
        {
            return Decision::listed(Verdict::Untouched, Rule::OutPortExcluded, index);
        }
        if route.is_local() && policy.has_dialect(DIALECT_SELF_EXEMPT) && source.is_self() {
            return Decision::untouched(Rule::SelfSource);
        }
    }
    let (uids, gids) = (List::MoreProxyUids, List::MoreProxyGids);
    let (uid, gid) = (conn.owner.uid, conn.owner.gid);
    if let Some(index) = proxy_owner(tables, policy, uids, policy.proxy_uid, uid, false) {
        return Decision::listed(Verdict::Untouched, Rule::ProxyUid, index);
    }
    if let Some(index) = proxy_owner(tables, policy, gids, policy.proxy_gid, gid, false) {
        return Decision::listed(Verdict::Untouched, Rule::ProxyGid, index);
    }
    if let Some(decision) = by_group(policy, conn, tables) {
        return decision;
    }
    if server != NO_ID {
        return capture();
    }
    Decision::untouched(Rule::Udp)
}
