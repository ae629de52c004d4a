//! Mode TPROXY: the mangle rules for connections that stay in the pod. They come on top of nat's.
//!
//! The sidecar calls the app from the client's address, and marks the socket. Its other connections to its own
//! pod get another mark in OUTPUT, by which PREROUTING tells them from the app's, and hands them to the inbound
//! port as if they came from outside.

use super::{
    Decision, Outbound, Tables, Verdict, inbound::by_port, outbound::effective_destination,
    outbound::proxy_owner,
};
use crate::{
    addr::Addr,
    policy::{List, Policy},
    rule::Rule,
};

/// Decides a TCP connect in mode TPROXY. `by_nat` is the decision of the nat rules.
#[inline(always)]
pub(super) fn transparent(
    policy: &Policy,
    conn: &Outbound,
    tables: &impl Tables,
    by_nat: Decision,
) -> Decision {
    let dialed = effective_destination(conn);
    let route = tables.route(dialed);
    if !conn.captured_family || !route.is_local() || route.excluded().is_some() {
        return by_nat;
    }
    if conn.mark == policy.transparent_mark {
        // From an address of the pod the answers find their way by themselves.
        let is_own = conn.source.is_unspecified() || tables.route(conn.source).is_local();
        return if is_own {
            by_nat
        } else {
            Decision::listed(Verdict::ByLoopback, Rule::Transparent, 0)
        };
    }
    let is_untouched = matches!(by_nat.verdict, Verdict::Untouched);
    let source = if conn.source.is_unspecified() {
        route.source
    } else {
        conn.source
    };
    let self_source = source.is(Addr::SELF_V4) || source.is(Addr::SELF_V6);
    if !is_untouched || self_source || policy.is_loopback(dialed) {
        return by_nat;
    }
    let Some((rule, index)) = marked(policy, conn, tables) else {
        return by_nat;
    };
    match by_port(policy, conn.port, dialed, tables).verdict {
        Verdict::Redirect { port, .. } => {
            Decision::listed(Verdict::Assign { port, dialed }, rule, index)
        }
        _ => by_nat,
    }
}

/// The rule that marks a connection of the proxy's.
#[inline(always)]
fn marked(policy: &Policy, conn: &Outbound, tables: &impl Tables) -> Option<(Rule, u32)> {
    let owner = conn.owner;
    let (uids, gids) = (List::MoreProxyUids, List::MoreProxyGids);
    if let Some(index) = proxy_owner(tables, policy, uids, policy.proxy_uid, owner.uid, false) {
        return Some((Rule::TransparentUidLocal, index));
    }
    proxy_owner(tables, policy, gids, policy.proxy_gid, owner.gid, false)
        .map(|index| (Rule::TransparentGidLocal, index))
}
