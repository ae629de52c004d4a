//! Follows a pod's addresses, routes and interfaces by netlink.

use std::{io, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use rtnetlink::{Handle, MulticastGroup};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::{Netns, routes::Snapshot};

/// Netlink answers from memory. A request that takes longer was lost.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The groups of everything in a [`Snapshot`].
const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// A netlink connection into a pod's namespace. It keeps the namespace alive, so it must be dropped as soon
/// as the pod is gone. Dropping it ends its tasks.
#[derive(Debug)]
pub struct Watch {
    handle: Handle,
    connection: JoinHandle<()>,
    events: JoinHandle<()>,
}

impl Watch {
    /// Opens the connection; `netns`'s cookie is sent on `changed` after every change.
    pub fn new(netns: &Netns, changed: mpsc::UnboundedSender<u64>) -> io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let (connection, handle, mut messages) = netns.run(|| {
            let _reactor = runtime.enter();
            rtnetlink::new_multicast_connection(&GROUPS)
        })??;
        let cookie = netns.cookie();
        Ok(Self {
            handle,
            connection: tokio::spawn(connection),
            events: tokio::spawn(async move {
                while messages.next().await.is_some() {
                    if changed.send(cookie).is_err() {
                        return;
                    }
                }
            }),
        })
    }

    /// Reads the namespace as it is now.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        timeout(TIMEOUT, Snapshot::read(&self.handle))
            .await
            .context("the kernel does not answer on netlink")?
            .context("read addresses and routes by netlink")
    }

    /// Whether changes are still reported.
    pub fn is_alive(&self) -> bool {
        !self.connection.is_finished() && !self.events.is_finished()
    }

    /// Adds an address without duplicate address detection taking effect on lo.
    pub async fn add_address(&self, ifindex: u32, addr: IpAddr) -> Result<()> {
        let prefix = if addr.is_ipv6() { 128 } else { 32 };
        let adding = self.handle.address().add(ifindex, addr, prefix).execute();
        Ok(timeout(TIMEOUT, adding).await??)
    }

    /// Removes an address that [`Watch::add_address`] added.
    pub async fn remove_address(&self, ifindex: u32, addr: IpAddr) -> Result<()> {
        use futures_util::TryStreamExt as _;
        let mut addresses = self
            .handle
            .address()
            .get()
            .set_link_index_filter(ifindex)
            .set_address_filter(addr)
            .execute();
        while let Some(message) = addresses.try_next().await? {
            self.handle.address().del(message).execute().await?;
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.connection.abort();
        self.events.abort();
    }
}
