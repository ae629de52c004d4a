//! The node in memory: namespaces, processes, paths, the clock, and faults of writes.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{PodRef, ids::IdMaps};
use sidetrack_reconcile::{NodeError, repairs::Part};

use crate::tables::Tables;

/// AF_INET.
const V4: u16 = 2;
/// Ports of the sidecar in every manifest of the model.
pub const OUTBOUND: u16 = 15001;
pub const INBOUND: u16 = 15006;
/// How long a write takes.
const WRITE: Duration = Duration::from_millis(1);

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    pub inode: NetnsInode,
    /// UID of the pod it was made for.
    pub uid: String,
    /// Interface of each route.
    pub routes: BTreeMap<u32, u32>,
    pub ifaces: BTreeMap<u32, &'static str>,
    pub has_v6: bool,
    pub has_self_v6: bool,
    pub has_return_route: bool,
    /// Numbering of its users.
    pub users: Users,
    /// Whether links into it report changes. Every link has a copy, which keeps the namespace.
    pub reports: Rc<Cell<bool>>,
}

/// Numbering of a namespace's users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    OfNode,
    Own,
    /// The sidecar's user does not exist.
    TooFew,
}

impl Users {
    const fn of_kind(kind: u32) -> Self {
        match kind % 16 {
            3 => Self::TooFew,
            7 | 8 => Self::Own,
            _ => Self::OfNode,
        }
    }
}

impl Namespace {
    pub fn ids(&self) -> IdMaps {
        match self.users {
            Users::OfNode => IdMaps::of_node(),
            Users::Own => IdMaps::parse("0 100000 65536", "0 100000 65536"),
            Users::TooFew => IdMaps::parse("0 100000 1000", "0 100000 1000"),
        }
    }
}

/// A process of a pod.
#[derive(Clone, Debug)]
pub struct Process {
    pub uid: String,
    pub cookie: NetnsCookie,
    pub inode: NetnsInode,
    /// Families and ports it listens on.
    pub listens: BTreeSet<(u16, u16)>,
}

/// Which writes fail.
#[derive(Debug, Default)]
pub struct Faults {
    /// The write with this number from now on fails.
    pub nth: Option<u32>,
    /// Every write with a number that this divides fails, so often.
    pub every: Option<(u32, u32)>,
    /// From the write with this number on nothing is written: the agent was killed.
    pub crash: Option<u32>,
    pub crashed: bool,
    /// Whether any write has failed so far.
    pub fired: bool,
    writes: u32,
}

impl Faults {
    /// Whether this write fails.
    fn hits(&mut self) -> bool {
        self.writes += 1;
        for (countdown, crash) in [(&mut self.nth, false), (&mut self.crash, true)] {
            match countdown {
                Some(0) => {
                    *countdown = None;
                    self.crashed |= crash;
                    self.fired = true;
                    return true;
                }
                Some(remaining) => *remaining -= 1,
                None => {}
            }
        }
        if let Some((each, remaining)) = &mut self.every
            && *remaining > 0
            && self.writes.is_multiple_of(*each)
        {
            *remaining -= 1;
            self.fired = true;
            return true;
        }
        self.crashed
    }

    pub fn clear(&mut self) {
        (self.nth, self.every, self.crash) = (None, None, None);
    }
}

/// What the last listing said about a pod.
#[derive(Clone, Debug)]
pub struct Applied {
    pub uid: Option<String>,
    pub wanted: bool,
    pub starting: bool,
}

/// Everything outside of the agent.
#[derive(Debug)]
pub struct World {
    pub now: Instant,
    /// Whether pods come from the API server, not from a directory.
    pub api: bool,
    pub namespaces: BTreeMap<NetnsCookie, Namespace>,
    pub processes: BTreeMap<u32, Process>,
    pub paths: BTreeMap<PathBuf, NetnsCookie>,
    pub tables: Tables,
    pub faults: Faults,
    /// What the agent has read about pods.
    pub applied: BTreeMap<PodRef, Applied>,
    /// Where this agent has last enrolled its pods.
    pub started: BTreeMap<(PodRef, Option<String>), NetnsCookie>,
    /// Namespaces with rows when this agent began.
    pub earlier: BTreeSet<NetnsCookie>,
    /// Number of the agent.
    pub generation: u32,
    /// Namespaces whose link this agent holds.
    pub held: BTreeSet<NetnsCookie>,
    /// Number of the pods' cgroup.
    pub cgroup: u32,
    /// The one that this agent has its hooks on.
    pub followed: u32,
    /// Whether something was lost since everything was whole.
    pub damaged: bool,
    /// Policies whose rows were removed.
    pub lost_policies: BTreeSet<PolicyId>,
    /// What cannot be repaired.
    pub broken: BTreeSet<Part>,
    /// How often was repaired, or tried.
    pub repairs: BTreeMap<Part, u32>,
    /// Whether processes cannot be read.
    pub unseen: bool,
    /// Whether sidecars begin to listen just before the next pod's row is written.
    pub race: bool,
    /// How long the reading of a namespace takes.
    pub namespace_takes: Duration,
    /// How often processes were read.
    pub reads: Cell<u32>,
    /// How often the map of listeners was read.
    pub listener_reads: Cell<u32>,
    /// How often listeners were searched.
    pub searches: u32,
    /// The servers in every resolv.conf; `None` if they cannot be read.
    pub dns_servers: Option<Vec<IpAddr>>,
    /// Violated invariants.
    pub violations: Vec<String>,
    next: u32,
}

impl World {
    pub fn new(api: bool) -> Self {
        Self {
            now: Instant::now(),
            api,
            namespaces: BTreeMap::new(),
            processes: BTreeMap::new(),
            paths: BTreeMap::new(),
            tables: Tables::default(),
            faults: Faults::default(),
            applied: BTreeMap::new(),
            started: BTreeMap::new(),
            earlier: BTreeSet::new(),
            generation: 0,
            held: BTreeSet::new(),
            cgroup: 1,
            followed: 0,
            damaged: false,
            lost_policies: BTreeSet::new(),
            broken: BTreeSet::new(),
            repairs: BTreeMap::new(),
            unseen: false,
            race: false,
            namespace_takes: Duration::ZERO,
            reads: Cell::new(0),
            listener_reads: Cell::new(0),
            searches: 0,
            dns_servers: None,
            violations: Vec::new(),
            next: 1,
        }
    }

    /// A number that was never used.
    pub fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub fn violate(&mut self, text: impl Into<String>) {
        self.violations.push(text.into());
    }

    pub fn require(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.violate(text());
        }
    }

    /// A write begins; answers whether it fails.
    pub fn begin_write(&mut self, what: &str) -> Result<(), NodeError> {
        self.now += WRITE;
        if self.faults.hits() {
            return Err(NodeError::Failed(format!("{what}: injected")));
        }
        Ok(())
    }

    /// A new namespace of a pod, with the inode of one that is gone if there is any.
    pub fn make_namespace(&mut self, uid: &str, kind: u32) -> NetnsCookie {
        let cookie = NetnsCookie::new(u64::from(self.fresh()));
        let gone: Vec<NetnsCookie> = self.namespaces.keys().copied().collect();
        let reused = gone.into_iter().find_map(|cookie| {
            let namespace = &self.namespaces[&cookie];
            let held = Rc::strong_count(&namespace.reports) > 1;
            let same_inode = |it: &Namespace| it.inode == namespace.inode;
            let newest = self.namespaces.values().filter(|it| same_inode(it)).count() == 1;
            (!held && newest && !self.exists(cookie)).then_some(namespace.inode)
        });
        let inode = match reused {
            Some(inode) if kind.is_multiple_of(2) => inode,
            _ => NetnsInode::new(cookie.get() + 4_026_531_840),
        };
        let namespace = Namespace {
            inode,
            uid: uid.to_owned(),
            routes: BTreeMap::from([(1, 2), (2, 3)]),
            ifaces: BTreeMap::from([(1, "lo"), (2, "eth0"), (3, "net1")]),
            has_v6: kind % 3 == 1,
            has_self_v6: false,
            has_return_route: false,
            users: Users::of_kind(kind),
            reports: Rc::new(Cell::new(true)),
        };
        self.namespaces.insert(cookie, namespace);
        cookie
    }

    /// Whether a namespace exists as far as the agent may notice.
    pub fn exists(&self, cookie: NetnsCookie) -> bool {
        self.has_path(cookie) || self.runs_in(cookie)
    }

    pub fn has_path(&self, cookie: NetnsCookie) -> bool {
        self.paths.values().any(|it| *it == cookie)
    }

    pub fn runs_in(&self, cookie: NetnsCookie) -> bool {
        self.processes.values().any(|it| it.cookie == cookie)
    }

    /// The namespace that a path leads to.
    pub fn at(&self, path: &Path) -> Option<NetnsCookie> {
        let text = path.to_str()?;
        let Some(process) = text.strip_prefix("/proc/") else {
            return self.paths.get(path).copied();
        };
        let pid: u32 = process.strip_suffix("/ns/net")?.parse().ok()?;
        Some(self.processes.get(&pid)?.cookie)
    }

    pub fn start_process(&mut self, uid: &str, cookie: NetnsCookie) -> u32 {
        let pid = self.fresh();
        let process = Process {
            uid: uid.to_owned(),
            cookie,
            inode: self.namespaces[&cookie].inode,
            listens: BTreeSet::new(),
        };
        self.processes.insert(pid, process);
        pid
    }

    /// A process ends. The kernel removes its sockets from the map of listeners.
    pub fn end_process(&mut self, pid: u32) {
        let Some(ended) = self.processes.remove(&pid) else {
            return;
        };
        for (family, port) in ended.listens {
            if !self.listens(ended.cookie, family, port) {
                let row = (ended.cookie, family, port);
                self.tables.listeners.remove(&row);
            }
        }
    }

    fn listens(&self, cookie: NetnsCookie, family: u16, port: u16) -> bool {
        let mut all = self.processes.values();
        all.any(|it| it.cookie == cookie && it.listens.contains(&(family, port)))
    }

    /// Whether the sidecar listens for outbound connections.
    pub fn is_served(&self, cookie: NetnsCookie) -> bool {
        self.listens(cookie, V4, OUTBOUND)
    }

    /// A process begins to listen. The kernel programs see that if the pod's row is there.
    pub fn listen(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        process.listens.extend([(V4, OUTBOUND), (V4, INBOUND)]);
        let cookie = process.cookie;
        if self.tables.pods.contains_key(&cookie) {
            let both = [OUTBOUND, INBOUND].map(|port| (cookie, V4, port));
            self.tables.listeners.extend(both);
            self.tables.before_sidecar.remove(&cookie);
        }
    }

    pub fn pids_in(&self, cookie: NetnsCookie) -> Vec<u32> {
        let all = self.processes.iter();
        all.filter(|(_, it)| it.cookie == cookie)
            .map(|(pid, _)| *pid)
            .collect()
    }
}
