//! Mode TPROXY: the mangle rules for connections that stay in the pod. They come on top of nat's.
//!
//! The sidecar calls the app from the client's address, and marks the socket. Its other connections to its own
//! pod get another mark in OUTPUT, by which PREROUTING distinguishes them from the app's, and hands them to the inbound
//! port as if they came from outside.

use super::{Decision, Outbound, Tables, Verdict, inbound::by_port};
use crate::{
    addr::Addr,
    policy::{List, NO_ID, Row},
    rule::Rule,
};

/// Decides a TCP connect in mode TPROXY; `None` if the nat rules do.
///
/// Before them rather than after: what they decide would multiply the paths that the kernel's verifier has to walk.
#[inline(always)]
pub(super) fn transparent(
    policy: impl Row,
    conn: &Outbound,
    dialed: Addr,
    tables: &impl Tables,
) -> Option<Decision> {
    let route = tables.route(dialed);
    let is_elsewhere = conn.routing_header || !route.is_local();
    if !conn.captured_family || is_elsewhere || route.excluded().is_some() {
        return None;
    }
    if conn.mark == policy.transparent_mark {
        // From an address of the pod the answers find their way by themselves.
        let is_own = !conn.is_bound(policy.zero()) || tables.route(conn.source).is_local();
        let by_lo = Decision::listed(Verdict::BindToLoopback, Rule::Transparent, 0);
        return (!is_own).then_some(by_lo);
    }
    let source = if !conn.is_bound(policy.zero()) {
        route.source
    } else {
        conn.source
    };
    if source.is_self() || policy.is_loopback(dialed) {
        return None;
    }
    let (uids, gids) = (List::MoreProxyUids, List::MoreProxyGids);
    let uid = position(tables, policy, uids, (policy.proxy_uid, conn.owner.uid));
    let gid = position(tables, policy, gids, (policy.proxy_gid, conn.owner.gid));
    if uid == NO_ID && gid == NO_ID {
        return None;
    }
    if redirects(policy, conn, (uid, gid), tables) {
        return None;
    }
    match by_port(policy, conn.port, dialed, tables).verdict {
        Verdict::Redirect { port, .. } => {
            let verdict = Verdict::Assign { port, dialed };
            let by_uid = uid != NO_ID;
            let (rule, index) = if by_uid {
                (Rule::TransparentUidLocal, uid)
            } else {
                (Rule::TransparentGidLocal, gid)
            };
            Some(Decision::listed(verdict, rule, index))
        }
        _ => None,
    }
}

/// Position of an id among the proxy's owners, [`NO_ID`] if it is none of them. A number rather than an option: LLVM
/// copies what an absent one leaves undefined, and the verifier rejects that.
#[inline(always)]
fn position(tables: &impl Tables, policy: impl Row, more: List, (first, id): (u32, u32)) -> u32 {
    if id == NO_ID {
        return NO_ID;
    }
    if id == first {
        return 0;
    }
    let mut position = NO_ID;
    if policy.has(more)
        && let Some(found) = tables.owner(more, id)
    {
        position = found;
    }
    position
}

/// Whether rule 4a or 5a of nat redirects a connection of the proxy's to its own pod. Its owners' positions are
/// [`NO_ID`] where they are in no list.
#[inline(always)]
fn redirects(
    policy: impl Row,
    conn: &Outbound,
    (uid, gid): (u32, u32),
    tables: &impl Tables,
) -> bool {
    // As in the nat rules: unless a loopback range is included, those for the first owner are final.
    let passes_dns = policy.passes_local(conn.port);
    let first_owner_only = policy.loopback_included == 0 && !passes_dns;
    let matches = |index: u32| index == 0 || index != NO_ID && !first_owner_only;
    let ends_at_uid = first_owner_only && policy.proxy_uid != NO_ID || passes_dns && uid != NO_ID;
    let by_owner = matches(uid) && !passes_dns || !ends_at_uid && matches(gid);
    let is_excluded = policy.has(List::OutPortExcluded)
        && tables.port(List::OutPortExcluded, conn.port).is_some();
    !policy.is_tunnel_out(conn.port) && by_owner && !is_excluded
}
