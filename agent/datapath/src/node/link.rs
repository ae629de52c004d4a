//! The agent's connection into a pod's network namespace.

use std::{
    io,
    net::Ipv6Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    kernel::forwarding::PodForwarding,
    netns::{
        Netns, addresses, inode_of, listeners::is_served, return_routes, routes::Snapshot,
        target_route, watch::Watch,
    },
};
use sidetrack_base::runtime;
use sidetrack_policy::policy::ReturnRoute;
use sidetrack_reconcile::{Phase, node::Link, repairs::IngressProgram};

/// How long a pod may keep the reconciler. Netlink answers from memory, in a few milliseconds.
const WAIT_TIMEOUT: Duration = Duration::from_millis(500);

/// The address istio-init adds to lo for IPv6, the sidecar's source toward the app.
const SELF_V6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);

/// A netlink connection into a pod, and the namespace as it was last read.
#[derive(Debug)]
pub struct PodLink {
    watch: Watch,
    changed: mpsc::UnboundedSender<u64>,
    path: PathBuf,
    netns: Arc<Netns>,
    /// Only while the pod is being written.
    snapshot: Option<Snapshot>,
    /// The return routes that this agent or an earlier one added.
    return_routes: Vec<ReturnRoute>,
    /// Why its connections are not accelerated although they should be.
    not_accelerated: Option<String>,
    /// Why its IPv6 destinations have no targets of their own.
    no_target_route: Option<String>,
    /// About its routes and the interfaces that its policy names.
    network_notes: Vec<String>,
    /// What it has for packets that only pass through it.
    pub(super) forwarding: PodForwarding,
    pub(super) node_calls: PodForwarding,
    /// What it has for DNS queries on lo.
    pub(super) queries: PodForwarding,
}

impl Link for PodLink {
    fn follow_path(&mut self, path: &Path) {
        path.clone_into(&mut self.path);
    }

    fn notes(&self) -> Vec<String> {
        let lost = self.not_accelerated.iter();
        let lost = lost.map(|why| format!("its connections are not accelerated: {why}"));
        let targets = self.no_target_route.iter();
        let targets = targets.map(|why| format!("its IPv6 connections take longer to make: {why}"));
        self.network_notes
            .iter()
            .chain(&self.forwarding.note)
            .chain(&self.node_calls.note)
            .cloned()
            .chain(lost)
            .chain(targets)
            .collect()
    }

    fn is_alive(&self) -> bool {
        self.watch.is_alive()
    }
}

impl PodLink {
    /// What it has of a program at its interfaces.
    pub(super) const fn ingress(&self, program: IngressProgram) -> &PodForwarding {
        match program {
            IngressProgram::Forwarded => &self.forwarding,
            IngressProgram::NodeCalls => &self.node_calls,
            IngressProgram::Queries => &self.queries,
        }
    }

    /// The same, to change it.
    pub(super) const fn ingress_mut(&mut self, program: IngressProgram) -> &mut PodForwarding {
        match program {
            IngressProgram::Forwarded => &mut self.forwarding,
            IngressProgram::NodeCalls => &mut self.node_calls,
            IngressProgram::Queries => &mut self.queries,
        }
    }

    /// Opens the connection.
    ///
    /// # Errors
    /// If the kernel gives no netlink socket.
    pub(super) fn new(
        netns: Netns,
        changed: mpsc::UnboundedSender<u64>,
        programs: impl Fn(IngressProgram) -> PodForwarding,
    ) -> Result<Self> {
        Ok(Self {
            watch: Self::watch(&netns, &changed)?,
            changed,
            path: netns.path().to_owned(),
            netns: Arc::new(netns),
            snapshot: None,
            return_routes: Vec::new(),
            not_accelerated: None,
            no_target_route: None,
            network_notes: Vec::new(),
            forwarding: programs(IngressProgram::Forwarded),
            node_calls: programs(IngressProgram::NodeCalls),
            queries: programs(IngressProgram::Queries),
        })
    }

    fn watch(netns: &Netns, changed: &mpsc::UnboundedSender<u64>) -> Result<Watch> {
        Watch::new(netns, changed.clone()).context("open a netlink socket in the pod")
    }

    /// Reads the namespace. A connection that was lost is opened again.
    pub(super) async fn read(&mut self) -> Result<()> {
        if !self.watch.is_alive() {
            self.watch = Self::watch(&self.netns, &self.changed)?;
        }
        self.snapshot = None;
        let read = self.inside(Snapshot::read).await;
        let snapshot = read.context("read addresses and routes by netlink")?;
        let added = snapshot.added_rules.iter();
        let unknown = added.filter(|added| !self.return_routes.contains(added));
        let unknown: Vec<ReturnRoute> = unknown.copied().collect();
        self.return_routes.extend(unknown);
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// Does something in the namespace, and waits for it as long as a pod may keep the reconciler.
    pub(super) async fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let netns = Arc::clone(&self.netns);
        let work = runtime::start_blocking(move || netns.run(work));
        let done = timeout(WAIT_TIMEOUT, work).await;
        Ok(done.context("the kernel does not answer on netlink")????)
    }

    pub(super) fn set_network_notes(&mut self, notes: Vec<String>) {
        for note in notes.iter().filter(|it| !self.network_notes.contains(it)) {
            tracing::warn!(netns = %self.path.display(), "{note}");
        }
        self.network_notes = notes;
    }

    pub(super) fn set_not_accelerated(&mut self, why: Option<String>) {
        self.not_accelerated = why;
    }

    /// The namespace as it was last read.
    pub(super) fn snapshot(&self) -> Result<&Snapshot> {
        self.snapshot
            .as_ref()
            .context("the namespace has not been read")
    }

    /// The namespace.
    pub(crate) fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The namespace, for as long as its connections are followed.
    #[must_use]
    pub fn shared_netns(&self) -> Arc<Netns> {
        Arc::clone(&self.netns)
    }

    /// Frees what is needed while the pod is being written only.
    pub(super) fn drop_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Whether lo lacks the sidecar's IPv6 source address.
    pub(super) fn lacks_self_v6(&self) -> Result<bool> {
        Ok(!self.snapshot()?.has_address(SELF_V6.into()))
    }

    /// Gives lo that address, as istio-init does; answers `false` if another program was faster.
    pub(super) async fn add_self_v6(&mut self) -> Result<bool> {
        let add = || match addresses::add(SELF_V6) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            added => added.map(|()| true),
        };
        let added = self.inside(add).await;
        let added = added.context("add ::6/128 to the pod's lo")?;
        self.read().await?;
        Ok(added)
    }

    /// Makes the dedicated IPv6 targets local in the pod. Without them connections are redirected as well.
    pub(super) async fn add_target_route(&mut self) {
        let is_missing = |snapshot: &Snapshot| snapshot.lacks_target_route();
        if !self.snapshot.as_ref().is_some_and(is_missing) {
            return;
        }
        let added = self.inside(target_route::add).await;
        let added = added.context("the route to 100:0:0:1::/64 cannot be added");
        if added.is_ok()
            && let Some(snapshot) = &mut self.snapshot
        {
            snapshot.add_target_route();
        }
        self.no_target_route = added.err().map(|problem| format!("{problem:#}"));
    }

    /// Asks that the namespace is read again although the kernel reports no change.
    pub(crate) fn request_reread(&self) {
        // Without a receiver the agent ends.
        let _ = self.changed.send(self.netns.cookie());
    }

    /// Gives packets with the policy's mark the route back into the pod. Routes that other policies needed are
    /// removed once the policy is active.
    pub(super) async fn set_return_route(
        &mut self,
        wanted: Option<ReturnRoute>,
        phase: Phase,
        with_v6: bool,
    ) -> Result<()> {
        let mut old = self.return_routes.clone();
        old.retain(|added| Some(*added) != wanted && phase == Phase::After);
        if old.is_empty() && wanted.is_none() {
            return Ok(());
        }
        // Before it is there, so that it is removed if this fails halfway.
        let unknown = wanted.filter(|wanted| !self.return_routes.contains(wanted));
        self.return_routes.extend(unknown);
        let gone = old.clone();
        let set = self.inside(move || set_return_route(wanted, &gone, with_v6));
        set.await
            .context("route the app's answers to the sidecar (mode TPROXY)")?;
        self.return_routes.retain(|added| !old.contains(added));
        Ok(())
    }

    /// Removes what was added to the namespace. It may be going away at the same time.
    pub(super) async fn restore(&mut self, added_self_v6: bool) {
        if added_self_v6 {
            let _ = self.inside(|| addresses::remove(SELF_V6)).await;
        }
        let added = std::mem::take(&mut self.return_routes);
        if !added.is_empty() {
            let removal = move || set_return_route(None, &added, true);
            let _ = self.inside(removal).await;
        }
    }

    /// Whether anything listens on a port; `None` if the namespace is not found any more.
    pub(super) fn is_served(&self, port: u16) -> Result<Option<bool>> {
        if inode_of(&self.path).ok() != Some(self.netns.inode()) {
            return Ok(None);
        }
        is_served(&self.netns, port).map(Some)
    }
}

/// Removes return routes and adds another one, in the namespace of the calling thread. A failure does not stop it
/// halfway.
fn set_return_route(
    wanted: Option<ReturnRoute>,
    old: &[ReturnRoute],
    with_v6: bool,
) -> io::Result<()> {
    // Before the rules, by which an agent that starts after a killed one sees that there is something to remove.
    let mut done = match wanted {
        Some(_) => Ok(()),
        None => return_routes::restore_settings(),
    };
    // Before another one is added, because both may have the same table.
    for added in old {
        done = done.and(return_routes::remove(*added));
    }
    match wanted {
        Some(wanted) => done.and(return_routes::add(wanted, with_v6)),
        None => done,
    }
}
