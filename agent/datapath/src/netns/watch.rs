//! Follows a pod's addresses, routes and interfaces: says that something has changed, not what.
//!
//! A pod with NET_ADMIN can change its routes all the time. Messages are thrown away unread, and a pod
//! that changes too often is followed less often. Others are not affected.

use std::{
    io,
    time::{Duration, Instant},
};

use netlink_sys::{
    AsyncSocket as _, AsyncSocketExt as _, Socket, SocketAddr, TokioSocket,
    protocols::NETLINK_ROUTE,
};
use sidetrack_reconcile::allowance::Allowance;
use tokio::{sync::mpsc, task::JoinHandle};

use super::Netns;

/// The multicast groups of everything in a [`Snapshot`](super::routes::Snapshot): `RTNLGRP_LINK`, `TC` (filters of
/// forwarded packets, which a pod could remove), `IPV4_IFADDR`, `IPV4_ROUTE`, `IPV4_RULE`, `IPV6_IFADDR`, `IPV6_ROUTE`
/// and `IPV6_RULE` of linux/rtnetlink.h.
const GROUPS: [u32; 8] = [1, 4, 5, 7, 8, 9, 11, 19];

/// The first message of a change is reported at once: until a route that came back is read, connections fail for lack of
/// it. The kernel reports one change in several messages: those of this time after the first are reported together.
const SETTLE: Duration = Duration::from_millis(10);
/// Changes that are followed at once.
const MAX_BURST: u32 = 40;
/// How often changes are followed after that.
const REFILL_INTERVAL: Duration = Duration::from_millis(500);

/// A netlink connection into a pod's namespace. It keeps the namespace alive, so it must be dropped as soon
/// as the pod is gone.
#[derive(Debug)]
pub struct Watch {
    task: JoinHandle<()>,
}

impl Watch {
    /// Opens the connection; `netns`'s cookie is sent on `changed` after changes.
    pub fn new(netns: &Netns, changed: mpsc::UnboundedSender<u64>) -> io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let socket = netns.run(|| -> io::Result<TokioSocket> {
            let _reactor = runtime.enter();
            let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
            socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
            for group in GROUPS {
                socket.socket_ref().add_membership(group)?;
            }
            Ok(socket)
        })??;
        let cookie = netns.cookie();
        Ok(Self {
            task: tokio::spawn(async move {
                let _ = follow(&socket, cookie, &changed).await;
            }),
        })
    }

    /// Whether changes are still reported.
    pub fn is_alive(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reports changes until the socket fails or the receiver is gone.
async fn follow(
    socket: &TokioSocket,
    cookie: u64,
    changed: &mpsc::UnboundedSender<u64>,
) -> io::Result<()> {
    let mut allowance = Allowance::new(MAX_BURST, REFILL_INTERVAL);
    loop {
        lost_is_fine(socket.recv(&mut &mut [0; 16][..]).await)?;
        while let Err(later) = allowance.take(Instant::now()) {
            tokio::time::sleep_until(later.into()).await;
        }
        // Before the report: what comes later is reported again.
        drain(socket.socket_ref())?;
        if changed.send(cookie).is_err() {
            return Ok(());
        }
        tokio::time::sleep(SETTLE).await;
    }
}

/// Throws away what has arrived. Should the pod be faster, the rest waits for the next time.
fn drain(socket: &Socket) -> io::Result<()> {
    const MESSAGES: usize = 10_000;
    for _ in 0..MESSAGES {
        match socket.recv(&mut &mut [0; 16][..], 0) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            result => lost_is_fine(result.map(drop))?,
        }
    }
    Ok(())
}

/// When messages are lost because the buffer is full, something has changed, which is all that matters.
fn lost_is_fine(received: io::Result<()>) -> io::Result<()> {
    match received {
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
        result => result,
    }
}
