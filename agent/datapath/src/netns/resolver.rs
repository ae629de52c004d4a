//! Whether a pod's sidecar receives DNS queries. No program sees that a UDP socket is bound or closed, so the pod's sockets
//! are listed.

use std::{io, ops::ControlFlow, time::Instant};

use super::Netns;
use crate::kernel::sock_diag::{self, Sockets};

/// Whether a UDP socket receives what is sent to loopback at a port.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel does not list its UDP sockets, or takes too long for it.
pub fn is_served(netns: &Netns, port: u16, until: Instant) -> io::Result<bool> {
    netns.run(|| {
        let mut is_served = false;
        sock_diag::visit(Sockets::Receiving(port), until, |socket| {
            let address = socket.header.socket_id.source_address.to_canonical();
            is_served = address.is_loopback() || address.is_unspecified();
            if is_served {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(is_served)
    })?
}
