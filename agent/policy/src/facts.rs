//! Everything that selection and policy ask of a pod, and nothing else.
//!
//! A pod is a foreign object: it may have megabytes of fields that are of no use here, and as typed objects these take
//! thirty times their size in memory. So a pod of the API server, of a file or of a request is read straight into this
//! type. Fields that it does not have are passed over without being kept, and code that asks for one does not compile.
//!
//! Invariant: the facts of a pod take at most [`MAX_POD_BYTES`] bytes. Of a pod with more there is a number, by which
//! it is rejected.

mod annotations;
pub(crate) mod containers;
mod meta;
pub(crate) mod read;

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, de::Error as _};

use self::read::{Node, Shape, fields, read_into};
pub use self::{
    annotations::{Annotations, Labels},
    containers::{ContainerFacts, Containers, RunAs},
    meta::{Meta, ObjectFacts},
};
use crate::{
    mesh_name::MeshName,
    names::{InjectedNames, REPLACED},
    text::shortened,
};

/// How many bytes of a pod's annotations, arguments and variables are kept. The API server allows 256 KiB for all
/// annotations, which is more than a list of 10,000 ranges needs, and injectors repeat lists as arguments of
/// istio-init.
pub const MAX_POD_BYTES: usize = 512 << 10;

/// The longest value that stays in the facts of a pod beyond [`MAX_POD_BYTES`].
const MAX_VALUE_BYTES: usize = 1 << 10;

/// A pod, as far as it concerns sidetrack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// `metadata`.
    pub meta: Meta,
    /// `spec`.
    pub spec: Spec,
    /// `status`.
    pub status: Status,
    /// Why the longest values are missing.
    excess: Option<Excess>,
}

/// Facts that would take more than may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// How many bytes they would take.
    pub bytes: usize,
    /// What they exceed.
    pub quota: Quota,
}

/// What facts may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// [`MAX_POD_BYTES`], of each pod.
    Pod,
    /// So many bytes, of the pods of a namespace on a node.
    Namespace(usize),
    /// So many bytes, of the pods of a node.
    Node(usize),
}

/// `spec` of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// The node that it runs on.
    pub node_name: Option<String>,
    /// Whether it uses the node's network.
    pub host_network: Option<bool>,
    /// Whether its users are the node's; false gives it a user namespace of its own.
    pub host_users: Option<bool>,
    /// What runs its containers.
    pub runtime_class_name: Option<String>,
    /// Whose identity it has in a mesh.
    pub service_account_name: Option<String>,
    /// `securityContext`.
    pub run_as: RunAs,
    /// Known containers.
    pub containers: Containers,
    /// Known init containers.
    pub init_containers: Containers,
}

/// `status` of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: Option<String>,
    /// Its addresses.
    pub pod_ips: PodIps,
}

/// The addresses in a pod's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodIps {
    ips: Vec<IpAddr>,
    item: PodIp,
}

/// An entry of `status.podIPs` that is being read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodIp(Option<String>);

impl PodFacts {
    /// The meshes that the pod has a sidecar of.
    pub fn meshes(&self) -> impl Iterator<Item = MeshName> {
        let has = |mesh: &MeshName| self.sidecar_of(*mesh).is_some();
        MeshName::ALL.into_iter().filter(has)
    }

    /// The sidecar container, of whichever mesh.
    #[must_use]
    pub fn sidecar(&self) -> Option<&ContainerFacts> {
        self.meshes().find_map(|mesh| self.sidecar_of(mesh))
    }

    /// A mesh's sidecar container, also a native one (an init container that keeps running). Without Envoy istio-proxy is
    /// none.
    #[must_use]
    pub fn sidecar_of(&self, mesh: MeshName) -> Option<&ContainerFacts> {
        self.sidecar_container(mesh)
            .filter(|sidecar| !sidecar.is_without_envoy())
    }

    /// Whether its istio-proxy is there for gRPC clients only, and receives no connections.
    #[must_use]
    pub fn is_proxyless(&self) -> bool {
        self.sidecar_container(MeshName::Istio)
            .is_some_and(ContainerFacts::is_without_envoy)
    }

    fn sidecar_container(&self, mesh: MeshName) -> Option<&ContainerFacts> {
        let name = InjectedNames::of(mesh).sidecar;
        let native = || self.spec.init_containers.find(name, true);
        self.spec.containers.find(name, false).or_else(native)
    }

    /// What a mesh's sidecar runs as, as far as the manifest has it: its container says so, or else the pod. Root counts as
    /// nothing. A group of the pod alone says nothing of a sidecar with a user of its own.
    #[must_use]
    pub fn run_as(&self, mesh: MeshName) -> RunAs {
        let own = self.sidecar_of(mesh).map(|sidecar| sidecar.run_as);
        let found = match own.unwrap_or_default() {
            own @ RunAs { user: Some(_), .. } => own,
            RunAs { group, .. } => RunAs {
                user: self.spec.run_as.user,
                group: group.or(self.spec.run_as.group),
            },
        };
        let id = |id: Option<u32>| id.filter(|id| *id != 0);
        RunAs {
            user: id(found.user),
            group: id(found.group),
        }
    }

    /// The init container with which a mesh programs iptables.
    #[must_use]
    pub fn init_of(&self, mesh: MeshName) -> Option<&ContainerFacts> {
        let name = InjectedNames::of(mesh).init;
        self.spec.init_containers.find(name, false)
    }

    /// Istio's.
    #[must_use]
    pub fn istio_init(&self) -> Option<&ContainerFacts> {
        self.init_of(MeshName::Istio)
    }

    /// The name of the init container that programs iptables for the pod's sidecar. Consul's is not one: it does other
    /// things, and leaves iptables alone where Consul's CNI plugin is installed.
    #[must_use]
    pub fn iptables_init(&self) -> Option<&'static str> {
        let inits = self.meshes().filter(|mesh| self.init_of(*mesh).is_some());
        let mut names = inits.map(|mesh| InjectedNames::of(mesh).init);
        names.find(|name| REPLACED.contains(name))
    }

    /// Whether both are the same but for their versions.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let Self {
            meta,
            spec,
            status,
            excess,
        } = self;
        meta.is_same(&other.meta)
            && *spec == other.spec
            && *status == other.status
            && *excess == other.excess
    }

    /// Why the facts are incomplete, if they are.
    #[must_use]
    pub fn excess(&self) -> Option<Excess> {
        self.excess
    }

    /// The facts without their longest values, because they exceed a quota.
    #[must_use]
    pub fn beyond(mut self, quota: Quota) -> Self {
        let bytes = self.bytes();
        self.excess = Some(Excess { bytes, quota });
        self.meta.drop_long();
        self.spec.drop_long();
        self.status.drop_long();
        self
    }

    /// About how many bytes the facts take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.meta.bytes() + self.spec.bytes() + self.status.bytes()
    }

    /// Ends the reading of a pod: of one beyond [`MAX_POD_BYTES`] the long values are dropped.
    pub(crate) fn bounded(self) -> Self {
        match self.bytes() <= MAX_POD_BYTES {
            true => self,
            false => self.beyond(Quota::Pod),
        }
    }
}

/// What takes memory: strings of which the API server bounds the length, and parts that bound themselves.
macro_rules! bounded {
    ($part:ty { $($text:ident),+; $($within:ident),* }) => {
        impl $part {
            /// About how many bytes it takes.
            pub(crate) fn bytes(&self) -> usize {
                let texts = [$(&self.$text),+].into_iter().flatten();
                texts.map(String::len).sum::<usize>() $(+ self.$within.bytes())*
            }

            /// Drops long values.
            pub(crate) fn drop_long(&mut self) {
                $($crate::facts::cut_long(&mut self.$text);)+
                $(self.$within.drop_long();)*
            }
        }
    };
}
pub(crate) use bounded;

/// Cuts a string that is longer than any valid one.
fn cut_long(text: &mut Option<String>) {
    if let Some(long) = text.take_if(|text| text.len() > MAX_VALUE_BYTES) {
        *text = Some(shortened(&long));
    }
}

bounded! { Spec { node_name, runtime_class_name, service_account_name; containers, init_containers } }
bounded! { Status { phase; } }

impl<'de> Deserialize<'de> for PodFacts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut pod = Self::default();
        match read_into(&mut pod, deserializer)? {
            Some(problem) => Err(D::Error::custom(problem)),
            None => Ok(pod.bounded()),
        }
    }
}

fields! { PodFacts {
    "metadata" => meta,
    "spec" => spec,
    "status" => status,
} }

fields! { Spec {
    "nodeName" => node_name,
    "hostNetwork" => host_network,
    "hostUsers" => host_users,
    "runtimeClassName" => runtime_class_name,
    "serviceAccountName" => service_account_name,
    "securityContext" => run_as,
    "containers" => containers,
    "initContainers" => init_containers,
} }

fields! { Status {
    "phase" => phase,
    "podIPs" => pod_ips,
} }

impl PodIps {
    /// The addresses.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.ips.iter().copied()
    }
}

impl Node for PodIps {
    fn shape(&self) -> Shape {
        Shape::List
    }

    fn item(&mut self) -> Option<&mut dyn Node> {
        // The API server gives a pod two, one of each family.
        const MAX_ADDRESSES: usize = 16;
        (self.ips.len() < MAX_ADDRESSES).then_some(&mut self.item)
    }

    fn end(&mut self, problem: Option<String>) -> Option<String> {
        let ip = self.item.0.take();
        self.ips.extend(ip.and_then(|ip| ip.parse::<IpAddr>().ok()));
        problem
    }
}

impl Node for PodIp {
    fn field(&mut self, name: &str) -> Option<&mut dyn Node> {
        (name == "ip").then_some(&mut self.0)
    }
}

#[cfg(test)]
mod tests;
