//! The rows of one pod.
//!
//! Invariant: what is written is remembered at once, so that a removal halfway through an enrollment
//! finds it.

use std::{collections::HashMap, io};

use anyhow::{Context as _, Result, bail};
use bytemuck::Zeroable as _;
use sidetrack_common::{
    addr::Family,
    conn::ListenerKey,
    ids::{NetnsCookie, NetnsInode, PolicyId},
    pod::{
        IfaceKey, IfaceRow, POD_ADDED_SELF_V6, POD_ANY_ADDRESS, POD_BEFORE_SIDECAR, POD_CAPTURE_V6,
        POD_FORWARDS, POD_HAS_IFACE_RULES, POD_NODE_CALLS, POD_OWN_TARGETS, POD_OWN_TARGETS_V6,
        POD_ROUTE_RULES, Pod, Route,
    },
    route_rules::{MAX_SELECTORS, RouteSelector, SelectorsKey},
};
use sidetrack_policy::{PodRef, Policy};
use sidetrack_reconcile::Phase;

use super::{RowCheck, RowQuotas, address_filter, capture_range, ifaces};
use crate::{
    kernel::{connection_counts::RemovedCounts, maps::Maps, table::Table},
    netns::routes::{PodRoutes, RouteId, Snapshot},
};

/// Flags that say what an earlier agent did in the namespace.
const PRESERVED_FLAGS: u32 = POD_ADDED_SELF_V6 | POD_FORWARDS | POD_NODE_CALLS;

/// The rows of one pod.
#[derive(Clone, Debug)]
pub struct PodRows {
    cookie: NetnsCookie,
    /// The pod's row as it was last written, or as it is to be written first.
    row: Box<Pod>,
    /// Whether this agent has written the row.
    is_written: bool,
    /// Flags of the row that is in the kernel, of this or an earlier agent.
    present_flags: Option<u32>,
    /// Flags of the row, as they are to be.
    flags: u32,
    routes: HashMap<RouteId, Route>,
    /// What chooses between views of the routes, for IPv4 and IPv6.
    selectors: [Option<[RouteSelector; MAX_SELECTORS]>; 2],
    ifaces: HashMap<u32, IfaceRow>,
    /// Whether the proxy's process is outside the pod.
    proxy_is_outside: bool,
}

impl PodRows {
    /// The rows of an earlier agent in a namespace.
    pub(super) fn earlier(cookie: NetnsCookie) -> Self {
        Self {
            cookie,
            row: Box::new(Pod::zeroed()),
            is_written: false,
            present_flags: None,
            flags: 0,
            routes: HashMap::new(),
            selectors: [None; 2],
            ifaces: HashMap::new(),
            proxy_is_outside: false,
        }
    }

    pub(super) fn add_earlier_row(&mut self, row: Pod) {
        self.flags = row.flags & PRESERVED_FLAGS;
        self.present_flags = Some(row.flags);
        *self.row = row;
    }

    pub(super) fn add_earlier_route(&mut self, id: RouteId, route: Route) {
        self.routes.insert(id, route);
    }

    pub(super) fn add_earlier_iface(&mut self, ifindex: u32, row: IfaceRow) {
        self.ifaces.insert(ifindex, row);
    }

    /// Rows for a pod, before anything is written. Rows that are in its namespace already are replaced.
    ///
    /// # Errors
    /// If a name is longer than Kubernetes allows.
    pub fn new(
        pod: &PodRef,
        uid: Option<&str>,
        (cookie, inode): (NetnsCookie, NetnsInode),
        present: Option<Self>,
    ) -> Result<Self> {
        let present = present.unwrap_or_else(|| Self::earlier(cookie));
        Ok(Self {
            row: Box::new(Pod {
                netns_inode: inode.get(),
                namespace: padded(&pod.namespace).context("the pod's namespace")?,
                name: padded(&pod.name).context("the pod's name")?,
                uid: padded(uid.unwrap_or_default()).context("the pod's UID")?,
                // As in the row that may be there, until this one is written.
                policy: present.row.policy,
                ..Pod::zeroed()
            }),
            is_written: false,
            flags: present.flags & PRESERVED_FLAGS,
            ..present
        })
    }

    /// Namespace and name of the pod, and its UID where that is known.
    #[must_use]
    pub fn names(&self) -> (String, String, Option<String>) {
        names(&self.row)
    }

    /// The id of the policy that the pod's row has.
    #[must_use]
    pub fn policy_id(&self) -> u32 {
        self.row.policy
    }

    /// The pod's UID, where it is known.
    #[must_use]
    pub fn uid(&self) -> Option<String> {
        self.names().2
    }

    /// The UID in the name of the cgroup that all processes with sockets in the pod's network are in; `None` if there is
    /// no such cgroup.
    #[must_use]
    pub fn uid_of_cgroup(&self) -> Option<String> {
        self.uid().filter(|_| !self.proxy_is_outside)
    }

    /// Writes the pod's row: its connections are decided by this policy from here on. Where another policy was active that
    /// did not capture IPv6, this one does so from [`Self::write_flags`] on: interface rows of the other may be there until
    /// then.
    ///
    /// # Errors
    /// If the map is full.
    pub fn write_pod(&mut self, policy: &Policy, id: PolicyId, maps: &Maps) -> Result<()> {
        self.set(POD_BEFORE_SIDECAR, policy.before_sidecar);
        let not_yet = self
            .present_flags
            .map_or(0, |flags| !flags & POD_CAPTURE_V6);
        self.write_row(id.get(), self.flags & !not_yet, maps)
    }

    /// Whether the row that is in the kernel captures IPv6.
    #[must_use]
    pub fn was_captured_v6(&self) -> bool {
        self.present_flags.unwrap_or_default() & POD_CAPTURE_V6 != 0
    }

    /// Writes the pod's row again if its flags have changed.
    ///
    /// # Errors
    /// If the map is full.
    pub fn write_flags(&mut self, maps: &Maps) -> Result<()> {
        if self.is_written && self.row.flags != self.flags {
            return self.write_row(self.row.policy, self.flags, maps);
        }
        Ok(())
    }

    fn write_row(&mut self, policy: u32, flags: u32, maps: &Maps) -> Result<()> {
        let row = Pod {
            policy,
            flags,
            ..*self.row
        };
        maps.pods.insert(&self.cookie.get(), &row).context(
            "write the pod's row; if the map is full, this node has more than 4096 sidecar pods",
        )?;
        *self.row = row;
        self.present_flags = Some(flags);
        self.is_written = true;
        Ok(())
    }

    /// Writes routes and interfaces: new rows first, then the old ones are removed. Answers with what people
    /// should know about them.
    ///
    /// # Errors
    /// If a map is full.
    pub fn write_namespace(
        &mut self,
        snapshot: &Snapshot,
        (policy, phase, with_targets_v6): (&Policy, Phase, bool),
        (maps, quotas): (&Maps, &mut RowQuotas),
    ) -> Result<Vec<String>> {
        self.proxy_is_outside = policy.dialect.proxy_mark().is_some();
        let (excluded, return_route) = (&policy.excluded_interfaces, policy.return_route());
        let namespace = text(&self.row.namespace);
        let most = quotas.routes.most(self.cookie, &namespace);
        let PodRoutes {
            rows,
            selectors,
            note,
        } = snapshot.rows(self.cookie.get(), excluded, return_route, most);
        let written = self.write_routes(&rows, selectors, phase, maps);
        self.note_quotas(quotas);
        written?;
        let most = quotas.ifaces.most(self.cookie, &namespace);
        let (ifaces, omitted) = ifaces::of_policy(snapshot, policy, most);
        let written = self.write_ifaces(&ifaces, phase, maps);
        self.note_quotas(quotas);
        written?;
        self.set(POD_HAS_IFACE_RULES, !self.ifaces.is_empty());
        let rules_ignore_it = policy.rules_ignore_capture_range();
        let is_local = capture_range::is_local(&self.routes);
        self.set(POD_OWN_TARGETS, rules_ignore_it && is_local);
        let is_local = capture_range::is_local_v6(&self.routes);
        self.set(
            POD_OWN_TARGETS_V6,
            with_targets_v6 && rules_ignore_it && is_local,
        );
        self.set(POD_ANY_ADDRESS, false);
        self.set(address_filter::of(&self.routes), true);
        Ok(note
            .into_iter()
            .chain(ifaces::note(omitted, most))
            .collect())
    }

    /// Notes what the pod has of the maps with quotas.
    pub fn note_quotas(&self, quotas: &mut RowQuotas) {
        let namespace = || text(&self.row.namespace);
        quotas
            .routes
            .note(self.cookie, namespace(), self.routes.len());
        quotas
            .ifaces
            .note(self.cookie, namespace(), self.ifaces.len());
    }

    fn write_routes(
        &mut self,
        wanted: &HashMap<RouteId, Route>,
        selectors: [Option<[RouteSelector; MAX_SELECTORS]>; 2],
        phase: Phase,
        maps: &Maps,
    ) -> Result<()> {
        for (id, route) in wanted {
            let earlier = self.routes.get(id);
            let included_again = route.excluded().is_none()
                && earlier.is_some_and(|earlier| earlier.excluded().is_some());
            if earlier != Some(route) && !(phase == Phase::Before && included_again) {
                let written = maps.routes.insert(&id.key(), route);
                written.context("write a route; is ROUTE_BY_POD full?")?;
                self.routes.insert(*id, *route);
            }
        }
        // After the routes that they choose, and before those are gone that they chose: without a route a connection fails.
        self.write_selectors(selectors, maps)?;
        self.remove_other_routes(wanted, maps)
    }

    fn write_selectors(
        &mut self,
        wanted: [Option<[RouteSelector; MAX_SELECTORS]>; 2],
        maps: &Maps,
    ) -> Result<()> {
        for (family, wanted) in [Family::V4, Family::V6].into_iter().zip(wanted) {
            let key = SelectorsKey::new(self.cookie.get(), family);
            match wanted {
                Some(selectors) => maps.selectors.insert(&key, &selectors),
                None => maps.selectors.remove(&key).map(drop),
            }
            .context("write what chooses between the pod's routes; is SELECTORS_BY_POD full?")?;
        }
        self.selectors = wanted;
        self.set(POD_ROUTE_RULES, wanted.iter().any(Option::is_some));
        Ok(())
    }

    fn write_ifaces(
        &mut self,
        wanted: &HashMap<u32, IfaceRow>,
        phase: Phase,
        maps: &Maps,
    ) -> Result<()> {
        for (ifindex, row) in wanted {
            if phase == Phase::Before && self.ifaces.contains_key(ifindex) {
                continue;
            }
            maps.ifaces
                .insert(&self.iface_key(*ifindex), row)
                .context("write an interface rule")?;
            self.ifaces.insert(*ifindex, *row);
        }
        if phase == Phase::Before {
            return Ok(());
        }
        self.remove_other_ifaces(wanted, maps)
    }

    fn iface_key(&self, ifindex: u32) -> IfaceKey {
        IfaceKey {
            netns: self.cookie.get(),
            ifindex,
            pad: 0,
        }
    }

    /// Notes a fact about the pod (`POD_*`), from when its row is written on.
    pub fn set(&mut self, flag: u32, is_so: bool) {
        self.flags = if is_so {
            self.flags | flag
        } else {
            self.flags & !flag
        };
    }

    /// Whether it is noted, by this or an earlier agent.
    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Compares all rows with what was written, the pod's own last.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn check(&self, maps: &Maps, check: &mut RowCheck) -> io::Result<()> {
        for (id, route) in &self.routes {
            check.row(&maps.routes, &id.key(), route)?;
        }
        for (family, selectors) in [Family::V4, Family::V6].into_iter().zip(&self.selectors) {
            if let Some(selectors) = selectors {
                let key = SelectorsKey::new(self.cookie.get(), family);
                check.row(&maps.selectors, &key, selectors)?;
            }
        }
        for (ifindex, row) in &self.ifaces {
            check.row(&maps.ifaces, &self.iface_key(*ifindex), row)?;
        }
        if self.is_written {
            check.row(&maps.pods, &self.cookie.get(), &self.row)?;
        }
        Ok(())
    }

    /// Removes the pod's row: its connections are untouched from here on.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn remove_pod(&mut self, maps: &Maps) -> Result<()> {
        self.remove_own(&maps.pods, "the pod's row")?;
        self.is_written = false;
        self.present_flags = None;
        Ok(())
    }

    /// Removes the row of a map that is keyed by the pod alone.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn remove_own<V: bytemuck::Pod>(&self, map: &Table<u64, V>, what: &str) -> Result<()> {
        map.remove(&self.cookie.get())
            .map(drop)
            .with_context(|| format!("remove {what}"))
    }

    /// Removes the pod's routes.
    ///
    /// # Errors
    /// If the map cannot be written; what remains is remembered.
    pub fn remove_routes(&mut self, maps: &Maps, quotas: &mut RowQuotas) -> Result<()> {
        self.write_selectors([None; 2], maps)?;
        let removed = self.remove_other_routes(&HashMap::new(), maps);
        self.note_quotas(quotas);
        removed
    }

    fn remove_other_routes(&mut self, wanted: &HashMap<RouteId, Route>, maps: &Maps) -> Result<()> {
        let mut gone: Vec<RouteId> = self.routes.keys().copied().collect();
        gone.retain(|id| !wanted.contains_key(id));
        for id in gone {
            maps.routes.remove(&id.key()).context("remove a route")?;
            self.routes.remove(&id);
        }
        Ok(())
    }

    /// Removes the pod's interface rows.
    ///
    /// # Errors
    /// If the map cannot be written; what remains is remembered.
    pub fn remove_ifaces(&mut self, maps: &Maps, quotas: &mut RowQuotas) -> Result<()> {
        let removed = self.remove_other_ifaces(&HashMap::new(), maps);
        self.note_quotas(quotas);
        removed
    }

    fn remove_other_ifaces(&mut self, wanted: &HashMap<u32, IfaceRow>, maps: &Maps) -> Result<()> {
        let mut gone: Vec<u32> = self.ifaces.keys().copied().collect();
        gone.retain(|ifindex| !wanted.contains_key(ifindex));
        for ifindex in gone {
            maps.ifaces
                .remove(&self.iface_key(ifindex))
                .context("remove an interface rule")?;
            self.ifaces.remove(&ifindex);
        }
        Ok(())
    }

    /// Removes the pod's listeners from the map; the sockets stay open.
    ///
    /// # Errors
    /// If the map cannot be read or written.
    pub fn remove_listeners(&self, maps: &Maps) -> Result<()> {
        self.remove_listeners_of(maps, |_| true)?;
        self.remove_own(&maps.sidecar_bits, "the mark of a listener on loopback")
    }

    fn remove_listeners_of(&self, maps: &Maps, goes: impl Fn(&ListenerKey) -> bool) -> Result<()> {
        let keys = maps.listeners.keys().context("list listeners")?;
        let own = keys.iter().filter(|key| key.netns == self.cookie.get());
        for key in own.filter(|key| goes(key)) {
            maps.listeners.remove(key).context("remove a listener")?;
        }
        Ok(())
    }

    /// Removes listeners at ports of the policy before that this one does not have: a pod whose ports change again and again
    /// would fill the map.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn remove_former_listeners(&self, former: u32, policy: &Policy, maps: &Maps) -> Result<()> {
        let former = maps.policies.get(&former);
        let Some(former) = former.context("read the policy before")? else {
            return Ok(());
        };
        let current = policy.listener_ports();
        let mut ports = vec![former.inbound_port, former.outbound_port];
        ports.retain(|port| !current.contains(port));
        if ports.is_empty() {
            return Ok(());
        }
        self.remove_listeners_of(maps, |key| ports.contains(&key.port))
    }

    /// Removes the pod's counters and its last refusals.
    ///
    /// # Errors
    /// If the map cannot be read or written.
    pub fn remove_counters(&self, maps: &Maps, removed: &RemovedCounts) -> Result<()> {
        maps.remove_counts(self.cookie.get(), removed)
            .context("remove the pod's counters")?;
        let keys = maps.last_refusals.keys().context("list refusals")?;
        for key in keys.iter().filter(|key| key.netns == self.cookie.get()) {
            maps.last_refusals.remove(key).context("remove a refusal")?;
        }
        Ok(())
    }
}

fn padded<const LEN: usize>(text: &str) -> Result<[u8; LEN]> {
    if text.len() >= LEN {
        bail!("{text:?} is longer than Kubernetes allows");
    }
    let mut bytes = [0; LEN];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    Ok(bytes)
}

/// Namespace, name and UID in a pod's row.
#[must_use]
pub fn names(row: &Pod) -> (String, String, Option<String>) {
    let uid = text(&row.uid);
    (
        text(&row.namespace),
        text(&row.name),
        (!uid.is_empty()).then_some(uid),
    )
}

/// The text before the padding.
fn text(padded: &[u8]) -> String {
    let end = padded
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(padded.len());
    String::from_utf8_lossy(&padded[..end]).into_owned()
}
