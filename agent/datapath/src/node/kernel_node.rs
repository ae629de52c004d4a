//! The node's kernel, with what is remembered between two turns.

use std::{
    cell::OnceCell,
    collections::{BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use sidetrack_common::{
    ids::{NetnsCookie, NetnsInode},
    names::{FORWARDED, MPTCP_INBOUND, MPTCP_OUTBOUND},
    pod::POD_FORWARDS,
};
use sidetrack_policy::{
    Policy,
    mesh::{Mesh, VirtualInterfaces},
};
use tokio::sync::mpsc;

use super::{
    Departed, PodLink, handshakes::Lingering, resolvers::Resolvers,
    stale_destinations::StaleDestinations,
};
use crate::{
    kernel::{Datapath, probe},
    netns::{
        listeners::Adopter,
        processes::{self, Processes},
        resolv_conf::{self, ResolvConf},
        transparent::Transparency,
    },
    rows::{PodRows, RowQuotas, policy_rows::WrittenPolicies},
};

/// Processes of a namespace that are looked at for one with files of its own. The kernel lists those with low numbers
/// first.
const MAX_PROCESSES: usize = 16;

/// The kernel of this node, as far as pods are concerned.
#[derive(Debug)]
pub struct KernelNode {
    /// The programs and maps.
    pub datapath: Datapath,
    /// Pods that have departed, as far as their connections need something.
    pub departed: Departed,
    /// Destinations with an address that a pod has lost, or that it has to give back to the pool.
    pub(crate) stale_destinations: StaleDestinations,
    /// Rows of handshakes that were there at the last look.
    pub(super) lingering: Lingering,
    /// The pod that was asked last whether its sidecar listens.
    pub(super) last_passing: NetnsCookie,
    /// The pod whose programs at its interfaces were looked at last.
    pub(super) last_ingress: NetnsCookie,
    /// The rows of policies.
    pub(super) policies: WrittenPolicies,
    /// What pods have of the maps with quotas.
    pub(super) row_quotas: RowQuotas,
    /// Searches for listeners that are open already.
    pub(super) adopter: Adopter,
    /// Makes listeners transparent.
    pub(crate) transparency: Transparency,
    /// What was known of sidecars at the last look, by cookie.
    sidecars: HashMap<u64, u32>,
    /// Reads pods' DNS servers.
    pub(crate) resolvers: Resolvers,
    /// Where links report changes.
    pub(super) changed: mpsc::UnboundedSender<u64>,
    /// Whether the rules apply to packets that only pass through a pod.
    pub(super) captures_forwarded: bool,
    /// Whether the kernel says where a packet has entered.
    pub(super) sees_entrance: bool,
}

impl KernelNode {
    /// Cookies of namespaces that change are sent on `changed`.
    #[must_use]
    pub fn new(datapath: Datapath, changed: mpsc::UnboundedSender<u64>) -> Self {
        let (adoption, tasks) = (&datapath.adoption, &datapath.tasks);
        let adopter = Adopter::new(Arc::clone(adoption), Arc::clone(tasks));
        let transparency = Transparency::new(Arc::clone(adoption), Arc::clone(tasks));
        Self {
            datapath,
            departed: Departed::default(),
            stale_destinations: StaleDestinations::default(),
            lingering: Lingering::default(),
            last_passing: NetnsCookie::new(0),
            last_ingress: NetnsCookie::new(0),
            policies: WrittenPolicies::default(),
            row_quotas: RowQuotas::default(),
            adopter,
            transparency,
            sidecars: HashMap::new(),
            resolvers: Resolvers::default(),
            changed,
            captures_forwarded: false,
            sees_entrance: probe::ingress_ifindex(),
        }
    }

    /// The pods, by cookie, whose sidecar listens otherwise than at the last look, or that have captured their first packet for
    /// another address.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub(crate) fn changed_sidecars(&mut self) -> io::Result<Vec<u64>> {
        const SEEN: u32 = MPTCP_INBOUND | MPTCP_OUTBOUND | FORWARDED;
        let rows = self.datapath.maps.sidecar_bits.rows()?.into_iter();
        let seen: HashMap<u64, u32> = rows.map(|(cookie, bits)| (cookie, bits & SEEN)).collect();
        let of = |map: &HashMap<u64, u32>, cookie| map.get(cookie).copied().unwrap_or_default();
        let all = seen.keys().chain(self.sidecars.keys());
        let changed = all.filter(|cookie| of(&seen, cookie) != of(&self.sidecars, cookie));
        let changed = changed.copied().collect();
        self.sidecars = seen;
        Ok(changed)
    }

    /// Does with packets that only pass through a pod what the mesh's settings say, from the pod's next turn on.
    pub fn follow_mesh(&mut self, mesh: &Mesh) {
        self.captures_forwarded = mesh.virtual_interfaces == VirtualInterfaces::Full;
    }

    /// Has the listeners of a pod made transparent that has captured packets for other addresses, if they are not. In mode
    /// TPROXY they stay so: the sidecar sets it as well.
    pub(crate) fn make_transparent(&self, rows: &PodRows, link: &PodLink, policy: &Policy) {
        let has_forwarded = || {
            let bits = self.datapath.maps.sidecar_bits.get(&link.netns().cookie());
            bits.is_ok_and(|bits| bits.is_some_and(|bits| bits & FORWARDED != 0))
        };
        if rows.has(POD_FORWARDS) && has_forwarded() {
            let is_transparent = policy.return_route().is_some();
            let (netns, ports) = (link.shared_netns(), policy.listener_ports());
            self.transparency.set(netns, ports, is_transparent);
        }
    }

    /// Sets them back.
    pub(crate) fn make_opaque(&self, link: &PodLink) {
        let bits = &self.datapath.maps.sidecar_bits;
        let cookie = link.netns().cookie();
        if let Ok(Some(known)) = bits.get(&cookie)
            && known & FORWARDED != 0
            && let Err(error) = bits.insert(&cookie, &(known & !FORWARDED))
        {
            tracing::warn!(
                cookie,
                "note that nothing passes through the pod any more: {error}"
            );
        }
        self.transparency.unset(link.shared_netns());
    }

    /// Where a pod's resolv.conf is: with its `process`, or, where no pod is known that the namespace is of, with the first
    /// one in it that has files of its own.
    #[must_use]
    pub fn resolv_conf(
        &self,
        netns: &Path,
        inode: NetnsInode,
        process: Option<PathBuf>,
    ) -> ResolvConf {
        let process = process.or_else(|| self.first_process_in(inode.get()));
        ResolvConf::new(netns, process.as_deref())
    }

    fn first_process_in(&self, inode: u64) -> Option<PathBuf> {
        let pids = self.datapath.tasks.list(inode, MAX_PROCESSES).ok()?;
        let mut processes = pids
            .into_iter()
            .map(|pid| PathBuf::from(format!("/proc/{pid}")));
        let found = processes.find(|process| resolv_conf::has_own_root(process))?;
        Some(found.join("ns/net"))
    }

    /// The node's processes, as far as they are in these namespaces. Where the cgroups of pods are given no others are
    /// looked for.
    #[must_use]
    pub fn processes_in(
        &self,
        inodes: BTreeSet<u64>,
        cgroups: Option<HashMap<String, PathBuf>>,
    ) -> Processes {
        Processes::of(processes::Node {
            tasks: Arc::clone(&self.datapath.tasks),
            inodes,
            pods: self.datapath.cgroup().to_owned(),
            anywhere: if cgroups.is_some() {
                OnceCell::from(HashMap::new())
            } else {
                OnceCell::new()
            },
            cgroups: cgroups.map_or_else(OnceCell::new, OnceCell::from),
            counted: OnceCell::new(),
        })
    }
}
