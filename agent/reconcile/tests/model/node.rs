//! The fake node: [`Node`] over [`World`], with sabotage.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    rc::Rc,
    time::Instant,
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{PodRef, compiled::CompiledPolicy};
use sidetrack_reconcile::{
    Enrollment, Found, Node, NodeError, Processes, Step,
    node::{EarlierRows, KnownListeners, Link, Look, NO_PROCESS, Opened, PolicyRows, Sought},
    policies::EarlierPolicy,
    repairs::{Findings, Repair},
};

use crate::{
    ops::{Kind, Op},
    rows::FakeRows,
    world::{Process, World},
};

/// The processes at one time.
#[derive(Clone, Debug, Default)]
pub struct FakeProcesses {
    pub all: Rc<Vec<(u32, Process)>>,
    /// Of other namespaces it is not known whether they have processes.
    asked: Rc<BTreeSet<NetnsInode>>,
    none: bool,
    unseen: bool,
}

impl Processes for FakeProcesses {
    fn none() -> Self {
        Self {
            none: true,
            ..Self::default()
        }
    }

    fn any_in(&self, inode: NetnsInode) -> bool {
        let is_unknown = self.unseen || !self.asked.contains(&inode);
        !self.none && is_unknown || self.all.iter().any(|(_, it)| it.inode == inode)
    }

    fn path_of(&self, inode: NetnsInode) -> Option<PathBuf> {
        let mut all = self.all.iter();
        let (pid, _) = all.find(|(_, it)| it.inode == inode)?;
        Some(PathBuf::from(format!("/proc/{pid}/ns/net")))
    }

    fn netns_of_pod(&self, pod: Sought<'_>) -> Result<Found, NodeError> {
        let of_pod = self.all.iter().filter(|(_, it)| it.uid == pod.uid);
        let mut of_pod: Vec<_> = of_pod.collect();
        of_pod.sort_by_key(|(_, it)| Some(it.inode) != pod.known);
        let first = of_pod.first();
        let (pid, process) = first.ok_or_else(|| NodeError::NotYet(NO_PROCESS.to_owned()))?;
        Ok(Found {
            path: PathBuf::from(format!("/proc/{pid}/ns/net")),
            inode: Some(process.inode),
            doubt: None,
        })
    }
}

/// A connection into a namespace, which keeps it.
#[derive(Debug)]
pub struct FakeLink(pub Rc<Cell<bool>>);

impl Link for FakeLink {
    fn follow_path(&mut self, _path: &Path) {}

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_alive(&self) -> bool {
        self.0.get()
    }
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    None,
    /// Writes of a kind are not done.
    Skip(Kind),
    /// Writes of the first kind are done after the next one of the second.
    Delay(Kind, Kind),
}

/// The node.
#[derive(Debug)]
pub struct FakeNode {
    pub world: Rc<RefCell<World>>,
    pub sabotage: Sabotage,
    delayed: Vec<(Option<NetnsCookie>, Op)>,
}

impl FakeNode {
    pub fn new(world: Rc<RefCell<World>>, sabotage: Sabotage) -> Self {
        Self {
            world,
            sabotage,
            delayed: Vec::new(),
        }
    }

    /// Does a write, or what the sabotage makes of it.
    fn submit(
        &mut self,
        mut target: Option<(NetnsCookie, &mut FakeRows)>,
        op: Op,
    ) -> Result<(), NodeError> {
        let kind = op.kind;
        match self.sabotage {
            Sabotage::Skip(skipped) if skipped == kind => return Ok(()),
            Sabotage::Delay(delayed, _) if delayed == kind => {
                self.delayed.push((target.map(|(cookie, _)| cookie), op));
                return Ok(());
            }
            _ => {}
        }
        let mut world = self.world.borrow_mut();
        world.perform(
            target.as_mut().map(|(cookie, rows)| (*cookie, &mut **rows)),
            op,
        )?;
        if matches!(self.sabotage, Sabotage::Delay(_, after) if after == kind) {
            let at = target.as_ref().map(|(cookie, _)| *cookie);
            let all = std::mem::take(&mut self.delayed);
            let (due, rest): (Vec<_>, Vec<_>) = all
                .into_iter()
                .partition(|(cookie, _)| cookie.is_none() || *cookie == at);
            self.delayed = rest;
            for (_, op) in due {
                let target = target.as_mut().map(|(cookie, rows)| (*cookie, &mut **rows));
                world.perform(target, op)?;
            }
        }
        Ok(())
    }
}

impl FakeNode {
    fn submit_policy(&mut self, op: Op) -> io::Result<()> {
        self.submit(None, op).map_err(io::Error::other)
    }
}

impl PolicyRows for FakeNode {
    fn write_lists(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()> {
        self.submit_policy(Op::of_policy(Kind::WriteLists, id, policy))
    }

    fn write_row(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()> {
        self.submit_policy(Op::of_policy(Kind::WritePolicy, id, policy))
    }

    fn remove_row(&mut self, id: PolicyId) -> io::Result<()> {
        self.submit_policy(Op {
            id: Some(id),
            ..Op::new(Kind::RemovePolicy)
        })
    }

    fn remove_lists(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()> {
        self.submit_policy(Op::of_policy(Kind::RemoveLists, id, policy))
    }

    fn highest(&self) -> io::Result<Option<PolicyId>> {
        Ok(self.world.borrow().tables.policy_ids().last().copied())
    }

    fn complete(&self) -> io::Result<Vec<EarlierPolicy>> {
        let world = self.world.borrow();
        // Lists that were altered are no policy's.
        let is_complete = |id| world.tables.lists.get(id).is_some_and(|it| it.complete);
        let all = world.tables.policies.iter();
        let all = all.filter(|(id, _)| is_complete(id));
        Ok(all
            .map(|(id, policy)| EarlierPolicy {
                id: *id,
                row: policy.row(),
                lists: policy.list_rows(),
            })
            .collect())
    }

    fn sweep(&mut self, keep: &BTreeSet<PolicyId>) -> io::Result<()> {
        self.submit_policy(Op {
            keep: keep.clone(),
            ..Op::new(Kind::SweepPolicies)
        })
    }
}

impl Node for FakeNode {
    type Rows = FakeRows;
    type Link = FakeLink;
    type Policies = Self;
    type Processes = FakeProcesses;

    fn now(&self) -> Instant {
        self.world.borrow().now
    }

    fn processes(&self, inodes: BTreeSet<NetnsInode>) -> FakeProcesses {
        let world = self.world.borrow();
        world.reads.set(world.reads.get() + 1);
        if world.unseen {
            return FakeProcesses {
                unseen: true,
                ..FakeProcesses::default()
            };
        }
        let all = world.processes.iter();
        FakeProcesses {
            all: Rc::new(all.map(|(pid, it)| (*pid, it.clone())).collect()),
            asked: Rc::new(inodes),
            none: false,
            unseen: false,
        }
    }

    fn inode_at(&self, path: &Path) -> Option<NetnsInode> {
        let world = self.world.borrow();
        Some(world.namespaces[&world.at(path)?].inode)
    }

    fn check(&self, found: &Found) -> Result<NetnsInode, NodeError> {
        let missing = || NodeError::NotYet(format!("{} is missing", found.path.display()));
        let inode = self.inode_at(&found.path).ok_or_else(missing)?;
        if found.inode.is_some_and(|known| known != inode) {
            return Err(missing());
        }
        Ok(inode)
    }

    async fn open(&mut self, found: &Found) -> Result<Opened<FakeLink>, NodeError> {
        let inode = self.check(found)?;
        let world = self.world.borrow();
        let cookie = world
            .at(&found.path)
            .ok_or_else(|| NodeError::NotYet("it is gone".to_owned()))?;
        let namespace = &world.namespaces[&cookie];
        namespace.reports.set(true);
        Ok(Opened {
            cookie,
            inode,
            ids: namespace.ids(),
            link: FakeLink(Rc::clone(&namespace.reports)),
        })
    }

    async fn dns_servers(
        &mut self,
        _pod: &PodRef,
        _cookie: NetnsCookie,
        _netns: (&Path, NetnsInode),
        _process: Option<&Path>,
    ) -> Option<Vec<IpAddr>> {
        self.world.borrow().dns_servers.clone()
    }

    fn rows(
        &self,
        pod: &PodRef,
        uid: Option<&str>,
        opened: &Opened<FakeLink>,
        present: Option<FakeRows>,
    ) -> Result<FakeRows, NodeError> {
        if pod.name.len() > 20 {
            return Err(NodeError::Failed("the pod's name is too long".to_owned()));
        }
        Ok(FakeRows::new(pod, uid, opened.inode, present))
    }

    async fn step(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut FakeRows,
        link: Option<&mut FakeLink>,
        step: &Step<'_, FakeProcesses>,
    ) -> Result<(), NodeError> {
        let op = Op::of_step(step);
        if op.kind == Kind::ReadNamespace
            && let Some(link) = link
        {
            link.0.set(true);
            let mut world = self.world.borrow_mut();
            let takes = world.namespace_takes;
            world.now += takes;
        }
        self.submit(Some((cookie, rows)), op)
    }

    fn policies(&mut self) -> &mut Self {
        self
    }

    fn earlier_rows(&mut self) -> Result<Vec<EarlierRows<FakeRows>>, NodeError> {
        let world = self.world.borrow();
        let cookies = world.tables.cookies().into_iter();
        Ok(cookies
            .map(|cookie| {
                let rows = FakeRows::earlier(&world.tables, cookie);
                let row = world.tables.pods.get(&cookie);
                EarlierRows {
                    cookie,
                    pod: row.map(|row| row.pod.clone()),
                    uid: row.and_then(|row| row.uid.clone()),
                    inode: row.map_or(NetnsInode::new(0), |row| row.inode),
                    rows,
                }
            })
            .collect())
    }

    fn refresh_program(&mut self, cookie: NetnsCookie) -> Result<bool, NodeError> {
        if self.sabotage == Sabotage::Skip(Kind::RefreshProgram) {
            return Ok(true);
        }
        let mut world = self.world.borrow_mut();
        world.begin_write("refresh the program")?;
        if !world.exists(cookie) {
            return Ok(false);
        }
        let generation = world.generation;
        match world.tables.lookups.get_mut(&cookie) {
            Some(attached) => *attached = generation,
            None => return Ok(false),
        }
        world.held.insert(cookie);
        Ok(true)
    }

    fn listeners(&self) -> KnownListeners {
        let world = self.world.borrow();
        world.listener_reads.set(world.listener_reads.get() + 1);
        let mut known = KnownListeners::new();
        for (cookie, family, port) in &world.tables.listeners {
            known.entry(*cookie).or_default().insert((*family, *port));
        }
        known
    }

    fn look(&mut self, at: Look<'_, Self>) -> Findings {
        let world = self.world.borrow();
        match at {
            Look::InboundLinks => Findings {
                links: world.inbound_losses(),
                ..Findings::default()
            },
            Look::All {
                policies,
                pods,
                earlier,
            } => world.look(policies, &pods, earlier),
        }
    }

    fn repair(
        &mut self,
        repair: &Repair,
        pod: Option<&Enrollment<Self>>,
    ) -> Result<bool, NodeError> {
        self.world.borrow_mut().repair(repair, pod)
    }
}
