//! The agent's connection into a pod's network namespace.

use std::{
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use tokio::sync::mpsc;

use crate::netns::{
    Netns, NetnsError, inode_at, listeners::is_served, routes::Snapshot, watch::Watch,
};

/// The address istio-init adds to lo for IPv6, the sidecar's source towards the app.
pub(super) const SELF_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6));

/// A netlink connection into a pod, and the namespace as it was last read.
#[derive(Debug)]
pub struct PodLink {
    watch: Watch,
    changed: mpsc::UnboundedSender<u64>,
    path: PathBuf,
    inode: u64,
    cookie: u64,
    /// Open until the pod is enrolled: no longer, because it keeps the namespace alive.
    netns: Option<Netns>,
    snapshot: Option<Snapshot>,
    loopback: Option<u32>,
}

impl PodLink {
    /// Opens the connection.
    ///
    /// # Errors
    /// If the kernel gives no netlink socket.
    pub(super) fn new(netns: Netns, changed: mpsc::UnboundedSender<u64>) -> Result<Self> {
        Ok(Self {
            watch: Self::watch(&netns, &changed)?,
            changed,
            path: netns.path().to_owned(),
            inode: netns.inode(),
            cookie: netns.cookie(),
            netns: Some(netns),
            snapshot: None,
            loopback: None,
        })
    }

    fn watch(netns: &Netns, changed: &mpsc::UnboundedSender<u64>) -> Result<Watch> {
        Watch::new(netns, changed.clone()).context("open a netlink socket in the pod")
    }

    /// Whether changes are still reported.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.watch.is_alive()
    }

    pub(super) fn follow_path(&mut self, path: &Path) {
        path.clone_into(&mut self.path);
    }

    /// Reads the namespace. A connection that was lost is opened again.
    pub(super) async fn read(&mut self) -> Result<()> {
        if !self.watch.is_alive() {
            self.watch = Self::watch(&self.open()?, &self.changed)?;
        }
        let snapshot = self.watch.snapshot().await?;
        self.loopback = snapshot.loopback();
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// Opens the namespace again. By now its path may lead to another one: a process id is reused.
    fn open(&self) -> Result<Netns> {
        let netns = Netns::open(&self.path)?;
        if (netns.inode(), netns.cookie()) != (self.inode, self.cookie) {
            return Err(NetnsError::NoProcess.into());
        }
        Ok(netns)
    }

    /// The namespace as it was last read.
    pub(super) fn snapshot(&self) -> Result<&Snapshot> {
        self.snapshot
            .as_ref()
            .context("the namespace has not been read")
    }

    /// The namespace, while the pod is being enrolled.
    pub(super) fn netns(&self) -> Result<&Netns> {
        self.netns.as_ref().context("the namespace is closed")
    }

    /// Frees what is needed while the pod is being written only.
    pub(super) fn written(&mut self) {
        self.netns = None;
        self.snapshot = None;
    }

    /// Gives lo the sidecar's IPv6 source address, as istio-init does; answers whether it was missing.
    pub(super) async fn add_self_v6(&mut self) -> Result<bool> {
        let has_it = self.snapshot()?.has_address(SELF_V6);
        let Some(lo) = self.loopback.filter(|_| !has_it) else {
            return Ok(false);
        };
        let added = self.watch.add_address(lo, SELF_V6).await;
        added.context("add ::6/128 to the pod's lo")?;
        self.read().await?;
        Ok(true)
    }

    /// Removes the address again. The namespace may be going away at the same time.
    pub(super) async fn remove_self_v6(&self) {
        if let Some(lo) = self.loopback {
            let _ = self.watch.remove_address(lo, SELF_V6).await;
        }
    }

    /// Whether anything listens on a port; `None` if the namespace is not found any more.
    pub(super) fn is_served(&self, port: u16) -> Result<Option<bool>> {
        if let Some(netns) = &self.netns {
            return is_served(netns, port).map(Some);
        }
        if inode_at(&self.path) != Some(self.inode) {
            return Ok(None);
        }
        is_served(&self.open()?, port).map(Some)
    }

    /// Inode of the namespace.
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }
}
