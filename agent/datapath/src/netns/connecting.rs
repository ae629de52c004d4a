//! Connections whose SYN has had no answer: the kernel ignores it while the accept queue of the sidecar's socket is
//! full. Those with a target of their own have no row in a map, so the pod's sockets are counted.

use std::{io, ops::ControlFlow, time::Instant};

use sidetrack_common::target::is_dedicated;

use super::Netns;
use crate::kernel::sock_diag::{self, Sockets};

/// Counts the connections of a pod to dedicated targets at its outbound port that wait for an answer.
///
/// # Errors
/// If the namespace cannot be entered, or listing its sockets takes too long.
pub fn count(netns: &Netns, outbound_port: u16, until: Instant) -> io::Result<u64> {
    netns.run(|| {
        let mut count = 0;
        let sockets = Sockets::Connecting(outbound_port);
        sock_diag::visit(sockets, until, |socket| {
            let target = socket.header.socket_id.destination_address;
            count += u64::from(is_dedicated(target.into()));
            ControlFlow::Continue(())
        })?;
        Ok(count)
    })?
}
