//! The node's kernel, with what is remembered between two turns.

use std::{
    cell::OnceCell,
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
};

use sidetrack_common::pod::POD_FORWARDS;
use sidetrack_policy::{
    Policy,
    mesh::{Mesh, VirtualInterfaces},
};
use tokio::sync::mpsc;

use super::{Departed, PodLink, handshakes::Lingering, resolvers::Resolvers};
use crate::{
    kernel::{Datapath, probe},
    netns::{
        listeners::Adopter,
        processes::{self, Processes},
        transparent::Transparency,
    },
    rows::{PodRows, policy_rows::WrittenPolicies},
};

/// The kernel of this node, as far as pods are concerned.
#[derive(Debug)]
pub struct KernelNode {
    /// The programs and maps.
    pub datapath: Datapath,
    /// Pods that have left, as far as their connections need something.
    pub departed: Departed,
    /// Rows of handshakes that were there at the last look.
    pub(super) lingering: Lingering,
    /// The rows of policies.
    pub(super) policies: WrittenPolicies,
    /// Searches for listeners that are open already.
    pub(super) adopter: Adopter,
    /// Makes listeners transparent.
    transparency: Transparency,
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
            lingering: Lingering::default(),
            policies: WrittenPolicies::default(),
            adopter,
            transparency,
            resolvers: Resolvers::default(),
            changed,
            captures_forwarded: false,
            sees_entrance: probe::ingress_ifindex(),
        }
    }

    /// Does with packets that only pass through a pod what the mesh's settings say, from the pod's next turn on.
    pub fn follow_mesh(&mut self, mesh: &Mesh) {
        self.captures_forwarded = mesh.virtual_interfaces == VirtualInterfaces::Full;
    }

    /// Has the listeners of a pod that captures packets for other addresses made transparent, if they are not.
    pub(crate) fn make_transparent(&self, rows: &PodRows, link: &PodLink, policy: &Policy) {
        if rows.has(POD_FORWARDS) {
            let netns = link.shared_netns();
            self.transparency.start(netns, policy.listener_ports());
        }
    }

    /// The node's processes, as far as they are in these namespaces; and the cgroups of pods where they are known.
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
            cgroups: cgroups.map_or_else(OnceCell::new, OnceCell::from),
            anywhere: OnceCell::new(),
            counted: OnceCell::new(),
        })
    }
}
