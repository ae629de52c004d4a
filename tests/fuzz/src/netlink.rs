//! Answers of the kernel about a pod's namespace: interfaces, addresses, routes, rules, sockets. Their
//! contents are the pod's, their number and order too.

use std::ops::ControlFlow;

use netlink_packet_core::NetlinkPayload;
use netlink_packet_sock_diag::SockDiagMessage;
use sidetrack_common::pod::{Route, RouteKey};
use sidetrack_datapath::{
    kernel::{netlink, sock_diag},
    netns::routes::{MAX_ROUTES, Snapshot},
};
use sidetrack_policy::Policy;

/// Routes that one pod may have in the map, and the two defaults that may come on top.
const MAX_ROWS: usize = MAX_ROUTES + 2;

/// Reads a datagram both ways.
pub fn check(datagram: &[u8]) {
    if let Ok(snapshot) = Snapshot::of_answer(datagram) {
        rows(&snapshot, &[]);
        rows(&snapshot, &["eth0".to_owned(), "lo".to_owned()]);
        for dual_stack in [false, true] {
            let policy = Policy {
                dual_stack,
                ..Policy::default()
            };
            let _ = snapshot.captures_v6(&policy);
        }
    }
    let _ = netlink::messages(datagram, |payload: NetlinkPayload<SockDiagMessage>| {
        if let NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket)) = payload {
            let _ = sock_diag::cookie(&socket);
        }
        Ok(ControlFlow::Continue(()))
    });
}

/// However many routes there are, a pod has its quota of the map, and every row is a kind of route.
fn rows(snapshot: &Snapshot, excluded: &[String]) {
    const NETNS: u64 = 7;
    let rows = snapshot.rows(NETNS, excluded, None, MAX_ROUTES).rows;
    assert!(rows.len() <= MAX_ROWS, "{} rows", rows.len());
    for (id, route) in &rows {
        let key: RouteKey = id.key();
        assert_eq!(key.netns, NETNS);
        let position = route.excluded().map(|position| position as usize);
        assert!(
            position.is_none_or(|position| position < excluded.len()),
            "{route:?}"
        );
        let known = route.is_local() || route.has_device() || route.is_unknown();
        assert!(
            known || route.errno() != 0 || *route == Route::NONE,
            "{route:?}"
        );
    }
}
