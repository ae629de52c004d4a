//! A proxy whose process is elsewhere: it makes its sockets in the pod's network, and marks them.

use super::{Decision, Outbound, Tables, Verdict};
use crate::{
    addr::Addr,
    policy::{List, PROXY_MARK_BITS, Row},
    rule::Rule,
};

/// Decides about a connection of a socket with the proxy's mark; `None` for others.
///
/// One that stays in the pod gets another mark: the app's socket takes that over (`tcp_fwmark_accept`), and with the
/// proxy's the app could connect it to anywhere. From an address that is not the pod's the proxy calls the app for a
/// client; the answers find it by the same mark.
#[inline(always)]
pub(super) fn marked(
    policy: impl Row,
    conn: &Outbound,
    dialed: Addr,
    tables: &impl Tables,
) -> Option<Decision> {
    let index = position(policy, conn, tables)?;
    let is_foreign = conn.is_bound(policy.zero()) && !tables.route(conn.source).is_local();
    let stays = policy.is_transparent()
        && conn.captured_family
        && !conn.routing_header
        && (policy.is_loopback(dialed) || tables.route(dialed).is_local());
    Some(match (stays, is_foreign) {
        (true, true) => Decision::listed(Verdict::BindToLoopback, Rule::Transparent, 0),
        (true, false) => Decision::listed(Verdict::Mark, Rule::ProxyMark, index),
        (false, _) => Decision::listed(Verdict::Untouched, Rule::ProxyMark, index),
    })
}

/// The position of a socket's mark among those of the proxy.
#[inline(always)]
pub(super) fn position(policy: impl Row, conn: &Outbound, tables: &impl Tables) -> Option<u32> {
    if !policy.has(List::ProxyMark) {
        return None;
    }
    tables.owner(List::ProxyMark, conn.mark & PROXY_MARK_BITS)
}
