//! What has to be repaired: a pure function from what is found in the kernel to repairs in their order.
//!
//! The node looks ([`Findings`]) and carries out ([`Repair`]); it decides nothing. A repair that fails is tried again
//! less and less often ([`Backoff`]), whatever becomes of the others.

mod backoff;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use sidetrack_common::{
    conn::HandshakeKey,
    ids::{NetnsCookie, NetnsInode, PolicyId},
};

pub use self::backoff::Backoff;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The links of pods for inbound connections, which pass the sidecar while one is detached. The kernel reports
    /// it to no program, and a look at one takes a microsecond.
    InboundLinks,
    /// Everything.
    All,
}

/// A link that the agent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkId {
    /// A hook on the pods' cgroup, by its name.
    Hook(&'static str),
    /// A pod's sk_lookup program in its network namespace.
    Inbound(NetnsCookie),
    /// The connection callbacks on a pod's own cgroup.
    Callbacks(NetnsCookie),
    /// The programs of DNS capture on a pod's own cgroup.
    Dns(NetnsCookie),
    /// A program at an interface of a pod, by the interface's index.
    Ingress(NetnsCookie, IngressProgram, u32),
}

/// A program that sees the packets which an interface receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IngressProgram {
    /// The one for packets that the pod forwards.
    Forwarded,
    /// The one for connections that the node itself makes.
    NodeCalls,
    /// The one at lo, by which DNS queries reach the sidecar.
    Queries,
}

impl IngressProgram {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Forwarded, Self::NodeCalls, Self::Queries];

    /// What it is for.
    #[must_use]
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded packets",
            Self::NodeCalls => "connections of the node",
            Self::Queries => "DNS queries",
        }
    }
}

/// What is wrong with a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkLoss {
    /// It was never made, and can be now.
    Missing,
    /// It is attached nowhere.
    Detached,
    /// It has another program, of this id.
    Replaced(u32),
    /// Its pin is gone, or of something else.
    Unpinned(PathBuf),
}

/// Where the pods' cgroup is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CgroupState {
    /// Where it was.
    #[default]
    Unchanged,
    /// The same one is reached by another path.
    Moved {
        /// The path until now.
        before: PathBuf,
        /// The path from now on.
        now: PathBuf,
    },
    /// Another one is in its place.
    Recreated {
        /// The path until now.
        before: PathBuf,
        /// The path from now on.
        now: PathBuf,
    },
    /// Nowhere. What is attached stays; the text is a problem.
    Gone(String),
}

/// A pod of an earlier agent whose sk_lookup link is not in its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierFinding {
    /// The namespace.
    pub cookie: NetnsCookie,
    /// Its inode.
    pub inode: NetnsInode,
    /// A path by one of the processes that have this inode, and the cookie of the namespace there: an inode is used
    /// again when its namespace is gone.
    pub found: Option<(PathBuf, Option<NetnsCookie>)>,
    /// Whether any process is there, or may be.
    pub has_processes: bool,
}

/// A handshake row whose connection is gone: its key and the cookie of the client's socket.
pub type StaleHandshake = (HandshakeKey, u64);

/// What a look has found: only what is not as the agent made it.
#[derive(Debug, Default)]
pub struct Findings {
    /// How many rows of policies are missing or different.
    pub policies: BTreeMap<PolicyId, usize>,
    /// How many rows of enrolled pods are missing, different or too many.
    pub rows: Vec<(NetnsCookie, usize)>,
    /// All namespaces that have a pod's row.
    pub pods: Vec<NetnsCookie>,
    /// Maps whose pin is gone or of something else.
    pub maps: Vec<(&'static str, PathBuf)>,
    /// Whether the shared program for inbound connections is not active.
    pub inbound_is_inactive: bool,
    /// Where the pods' cgroup is.
    pub cgroup: CgroupState,
    /// Links.
    pub links: Vec<(LinkId, LinkLoss)>,
    /// The directory of pins, if it was made anew: the lock is on the one before.
    pub directory: Option<PathBuf>,
    /// Pods of earlier agents.
    pub earlier: Vec<EarlierFinding>,
    /// Handshake rows of connections that are gone.
    pub handshakes: Vec<StaleHandshake>,
    /// Pods of which not everything was looked at this time.
    pub not_asked: BTreeSet<NetnsCookie>,
    /// What could not be looked at, as sentences.
    pub problems: Vec<String>,
}

/// A repair, with what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Write rows of policies again, lists before the row that says they are there.
    WritePolicies(BTreeMap<PolicyId, usize>),
    /// Write a pod's rows again, its own last; end its leave to go past a sidecar that listens.
    WriteRows(NetnsCookie, usize),
    /// Remove rows of pods that no agent has written.
    RemoveRows(Vec<NetnsCookie>),
    /// Pin a map again.
    PinMap(&'static str, PathBuf),
    /// Activate the shared program for inbound connections.
    ActivateInbound,
    /// Follow the pods' cgroup; attach all hooks if it is another one.
    FollowCgroup(CgroupState),
    /// Attach a link, put its program into its place, or pin it.
    RestoreLink(LinkId, LinkLoss),
    /// Lock the directory of pins again.
    LockDirectory(PathBuf),
    /// Attach the sk_lookup program of an earlier agent's pod.
    AttachEarlier {
        /// The namespace.
        cookie: NetnsCookie,
        /// Its inode.
        inode: NetnsInode,
        /// A path to it.
        path: PathBuf,
    },
    /// Remove the rows of an earlier agent's pod that is gone.
    ForgetEarlier(NetnsCookie),
    /// Remove handshake rows of connections that are gone.
    RemoveHandshakes(Vec<StaleHandshake>),
}

/// What a repair is of. There is one repair of each at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The rows of policies.
    Policies,
    /// The rows of a pod.
    Rows(NetnsCookie),
    /// Rows of pods that no agent has written.
    UnknownPods,
    /// A map's pin.
    Map(&'static str),
    /// The shared program for inbound connections.
    InboundProgram,
    /// The pods' cgroup.
    Cgroup,
    /// A link.
    Link(LinkId),
    /// The sk_lookup link of an earlier agent's pod.
    Earlier(NetnsCookie),
    /// The directory of pins.
    Directory,
    /// Handshake rows.
    Handshakes,
}

/// A kind of repair, as metrics count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairKind {
    /// The cgroup was made anew, or is reached by another path.
    Cgroup,
    /// A link was detached, or has another program.
    Link,
    /// A pin was gone, or was of something else.
    Pin,
    /// A row was missing, different or too many.
    Row,
}

impl RepairKind {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Cgroup, Self::Link, Self::Pin, Self::Row];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Link => "link",
            Self::Pin => "pin",
            Self::Row => "row",
        }
    }
}

impl LinkId {
    /// The pod it is of.
    #[must_use]
    pub const fn pod(self) -> Option<NetnsCookie> {
        match self {
            Self::Hook(_) => None,
            Self::Inbound(cookie)
            | Self::Callbacks(cookie)
            | Self::Dns(cookie)
            | Self::Ingress(cookie, ..) => Some(cookie),
        }
    }
}

impl Repair {
    /// What it is of.
    #[must_use]
    pub const fn part(&self) -> Part {
        match self {
            Self::WritePolicies(_) => Part::Policies,
            Self::WriteRows(cookie, _) => Part::Rows(*cookie),
            Self::RemoveRows(_) => Part::UnknownPods,
            Self::PinMap(name, _) => Part::Map(name),
            Self::ActivateInbound => Part::InboundProgram,
            Self::FollowCgroup(_) => Part::Cgroup,
            Self::RestoreLink(link, _) => Part::Link(*link),
            Self::LockDirectory(_) => Part::Directory,
            Self::AttachEarlier { cookie, .. } | Self::ForgetEarlier(cookie) => {
                Part::Earlier(*cookie)
            }
            Self::RemoveHandshakes(_) => Part::Handshakes,
        }
    }
}

/// The repairs that follow from a look. Rows come first: a program that is attached again finds them complete.
/// `enrolled` are the pods of this agent, `known` the other namespaces with rows that some agent wrote on purpose.
#[must_use]
pub fn decide(
    findings: Findings,
    enrolled: &BTreeSet<NetnsCookie>,
    known: &BTreeSet<NetnsCookie>,
) -> Vec<Repair> {
    let mut repairs = Vec::new();
    if !findings.policies.is_empty() {
        repairs.push(Repair::WritePolicies(findings.policies));
    }
    let of_pod = findings.rows.into_iter();
    repairs.extend(of_pod.map(|(cookie, rows)| Repair::WriteRows(cookie, rows)));
    let mut unknown = findings.pods;
    unknown.retain(|cookie| !enrolled.contains(cookie) && !known.contains(cookie));
    if !unknown.is_empty() {
        repairs.push(Repair::RemoveRows(unknown));
    }
    let maps = findings.maps.into_iter();
    repairs.extend(maps.map(|(name, path)| Repair::PinMap(name, path)));
    if findings.inbound_is_inactive {
        repairs.push(Repair::ActivateInbound);
    }
    // Hooks that are to be attached to another cgroup are not looked at on the one before; if there is none they stay.
    let follows_hooks = matches!(
        findings.cgroup,
        CgroupState::Unchanged | CgroupState::Moved { .. }
    );
    if !matches!(
        findings.cgroup,
        CgroupState::Unchanged | CgroupState::Gone(_)
    ) {
        repairs.push(Repair::FollowCgroup(findings.cgroup));
    }
    let is_restored = |link: &LinkId| match link.pod() {
        Some(pod) => enrolled.contains(&pod),
        None => follows_hooks,
    };
    let links = findings.links.into_iter();
    let links = links.filter(|(link, _)| is_restored(link));
    repairs.extend(links.map(|(link, loss)| Repair::RestoreLink(link, loss)));
    repairs.extend(findings.directory.map(Repair::LockDirectory));
    repairs.extend(findings.earlier.into_iter().filter_map(of_earlier));
    if !findings.handshakes.is_empty() {
        repairs.push(Repair::RemoveHandshakes(findings.handshakes));
    }
    repairs
}

/// Pods that an earlier agent enrolled and this one could not, such as one whose manifest cannot be followed.
fn of_earlier(finding: EarlierFinding) -> Option<Repair> {
    let EarlierFinding { cookie, inode, .. } = finding;
    match finding.found {
        Some((path, Some(there))) if there == cookie => Some(Repair::AttachEarlier {
            cookie,
            inode,
            path,
        }),
        Some((_, Some(_))) => Some(Repair::ForgetEarlier(cookie)),
        // The process has ended just now.
        Some((_, None)) => None,
        // Processes that cannot be seen may be there.
        None => (!finding.has_processes).then_some(Repair::ForgetEarlier(cookie)),
    }
}

#[cfg(test)]
mod tests;
