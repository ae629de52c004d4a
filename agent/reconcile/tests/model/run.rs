//! Runs a sequence of events against the reconciler.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::{PodRef, manifest::Document, mesh::Mesh, select::Enroll};
use sidetrack_reconcile::{
    Core, Found, Listing, Node as _,
    cni::{CniAnswer, Sandbox},
    repairs::Scope,
};

use crate::{
    events::{Event, SLOTS},
    node::{FakeNode, Sabotage},
    pods::Pod,
    world::{Applied, World},
};

/// The result of a future that waits for nothing.
pub fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the fake node never waits"),
    }
}

/// A node with its pods and the agent.
pub struct Run {
    pub world: Rc<RefCell<World>>,
    pub core: Core<FakeNode>,
    pub pods: BTreeMap<usize, Pod>,
    pub restarts: u32,
    sabotage: Sabotage,
}

impl Run {
    pub fn new(api: bool, sabotage: Sabotage) -> Self {
        let world = Rc::new(RefCell::new(World::new(api)));
        let core = start(&world, sabotage);
        Self {
            world,
            core,
            pods: BTreeMap::new(),
            restarts: 0,
            sabotage,
        }
    }

    /// After some events, without a sabotage.
    pub fn after(api: bool, events: &[Event]) -> Self {
        let mut run = Self::new(api, Sabotage::None);
        for event in events {
            run.happen(*event);
        }
        run
    }

    /// The document of the pod in slot 0, with changes.
    pub fn changed(&self, change: impl FnOnce(&mut Document)) -> Document {
        let mut document = self.pods[&0].document(true);
        change(&mut document);
        document
    }

    /// The agent reads a whole listing of the API server with this document alone.
    pub fn list_one(&mut self, document: Document) {
        self.list_all(vec![document]);
    }

    /// The same with several.
    pub fn list_all(&mut self, pods: Vec<Document>) {
        let listing = Listing {
            pods,
            problems: Vec::new(),
            complete: true,
            running_counts: true,
        };
        ready(self.core.apply(&listing));
    }

    pub fn restart(&mut self) {
        self.restarts += 1;
        {
            let mut world = self.world.borrow_mut();
            world.generation += 1;
            world.faults.crashed = false;
            world.tables.used = world.tables.policy_ids();
            world.earlier = world.tables.cookies();
            world.applied.clear();
            world.started.clear();
        }
        for pod in self.pods.values_mut() {
            pod.is_listed = false;
        }
        let fired = std::mem::take(&mut self.world.borrow_mut().faults.fired);
        self.core = start(&self.world, self.sabotage);
        let mut world = self.world.borrow_mut();
        let current =
            |(cookie, by): (&NetnsCookie, &u32)| *by == world.generation || !world.exists(*cookie);
        let all = world.faults.fired || world.tables.lookups.iter().all(current);
        world.faults.fired |= fired;
        world.require(all, || "an earlier agent's program is attached".to_owned());
    }

    /// Does one event, and starts another agent if it was killed.
    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Create(slot, variant) => self.create(slot, variant),
            Event::Change(slot, variant) => {
                if let Some(pod) = self.pods.get_mut(&slot) {
                    pod.variant = variant;
                }
            }
            Event::Running(slot) => {
                if let Some(pod) = self.pods.get_mut(&slot) {
                    pod.pending = false;
                }
            }
            Event::Delete(slot) => {
                self.pods.remove(&slot);
            }
            Event::List { complete } => self.list(complete),
            Event::CannotList => self.core.cannot_list("injected".to_owned()),
            Event::Tick(millis) => self.tick(millis),
            Event::Attach(slot, kind) => self.attach(slot, kind),
            Event::Forget(slot) => {
                if let Some(pod) = self.pods.get(&slot) {
                    let container = pod.uid.clone();
                    let inode = self.core.node.inode_at(&sandbox_path(&pod.uid));
                    ready(self.core.forget_sandbox(&container, inode));
                    self.world
                        .borrow_mut()
                        .paths
                        .remove(&sandbox_path(&container));
                    ready(self.core.forget_sandbox(&container, None));
                }
            }
            Event::KeepSandboxes => {
                let kept: Vec<String> = self.pods.values().map(|pod| pod.uid.clone()).collect();
                ready(self.core.keep_sandboxes(&kept));
            }
            Event::Awaited(slot) => {
                if let Some(pod) = self.pods.get(&slot) {
                    let processes = self.core.node.processes(BTreeSet::new());
                    if self.core.awaited().any(|uid| uid == pod.uid) {
                        ready(self.core.enroll_awaited(&pod.uid, processes));
                    }
                }
            }
            Event::Routes(slot, number) => self.change_routes(slot, number),
            Event::Lose(slot, loss) => self.lose(slot, loss),
            Event::Restart => self.restart(),
            _ => self.happen_on_node(event),
        }
        if self.world.borrow().faults.crashed {
            self.restart();
        }
    }

    /// An event on the node that the agent has to find by itself.
    fn happen_on_node(&mut self, event: Event) {
        let api = self.world.borrow().api;
        let all_uids: Vec<String> = self.pods.values().map(|pod| pod.uid.clone()).collect();
        let uid_of = |slot| self.pods.get(&slot).map(|pod: &Pod| pod.uid.clone());
        let mut guard = self.world.borrow_mut();
        let world = &mut *guard;
        let pids_of = |world: &World, uid: &str| -> Vec<u32> {
            let all = world.processes.iter();
            all.filter(|(_, it)| it.uid == uid)
                .map(|(pid, _)| *pid)
                .collect()
        };
        match event {
            Event::Start(slot, kind) => {
                if let Some(pod) = self.pods.get(&slot) {
                    let cookie = namespace_of(world, pod, kind);
                    world.start_process(&pod.uid, cookie);
                }
            }
            Event::Listen(slot) => {
                for pid in uid_of(slot)
                    .map(|uid| pids_of(world, &uid))
                    .unwrap_or_default()
                {
                    world.listen(pid);
                }
            }
            Event::End(slot) => {
                for pid in uid_of(slot)
                    .map(|uid| pids_of(world, &uid))
                    .unwrap_or_default()
                {
                    world.end_process(pid);
                }
            }
            Event::EndDeleted => end_deleted(world, &all_uids),
            Event::Vanish(slot) => {
                if let Some(pod) = self.pods.get(&slot) {
                    for cookie in cookies_of(world, pod) {
                        for pid in world.pids_in(cookie) {
                            world.end_process(pid);
                        }
                        world.paths.retain(|_, at| *at != cookie);
                    }
                }
            }
            Event::Replace(slot, kind) => {
                if let Some(pod) = self.pods.get(&slot) {
                    let cookie = world.make_namespace(&pod.uid, kind);
                    world.paths.insert(own_path(pod, api), cookie);
                }
            }
            Event::Alias(slot, other) if !api => {
                let path = |slot| self.pods.get(&slot).map(|pod| own_path(pod, api));
                if let (Some(from), Some(to)) = (path(slot), path(other))
                    && let Some(cookie) = world.paths.get(&to).copied()
                {
                    world.paths.insert(from, cookie);
                }
            }
            Event::LinkBreaks(slot) => {
                if let Some(pod) = self.pods.get(&slot) {
                    for cookie in cookies_of(world, pod) {
                        world.namespaces[&cookie].reports.set(false);
                    }
                }
            }
            Event::Traffic => {
                let mut pods: Vec<NetnsCookie> = world.tables.pods.keys().copied().collect();
                pods.retain(|cookie| world.namespaces.contains_key(cookie));
                world.tables.handshakes.extend(&pods);
                world.tables.counters.extend(&pods);
            }
            Event::FailNth(nth) => world.faults.nth = Some(nth),
            Event::FailEvery(every) => world.faults.every = Some((every, 10)),
            Event::Crash(nth) => world.faults.crash = Some(nth),
            Event::Race => world.race = true,
            Event::Unseen(unseen) => world.unseen = unseen,
            _ => {}
        }
    }

    fn create(&mut self, slot: usize, variant: crate::pods::Variant) {
        let number = self.world.borrow_mut().fresh();
        let api = self.world.borrow().api;
        let name = if slot == SLOTS - 1 {
            "a-name-that-does-not-fit".to_owned()
        } else {
            format!("p{slot}")
        };
        let pod = Pod {
            name: PodRef {
                namespace: "default".to_owned(),
                name,
            },
            uid: format!("uid-{number}"),
            has_uid: api || number.is_multiple_of(2),
            variant,
            pending: true,
            is_listed: false,
        };
        self.pods.insert(slot, pod);
    }

    /// The agent reads the listing. One that is not complete lacks pods that were never listed.
    pub fn list(&mut self, complete: bool) {
        let mut listing = Listing {
            complete,
            ..Listing::default()
        };
        {
            let mut world = self.world.borrow_mut();
            listing.running_counts = world.api;
            world.applied.clear();
            for (slot, pod) in &mut self.pods {
                if !complete && !pod.is_listed && slot % 2 == 0 {
                    continue;
                }
                pod.is_listed = true;
                listing.pods.push(pod.document(world.api));
                let applied = Applied {
                    uid: pod.listed_uid(),
                    wanted: !pod.variant.is_skipped(),
                    starting: pod.pending && pod.variant.policy().is_some(),
                };
                world.applied.insert(pod.name.clone(), applied);
            }
        }
        ready(self.core.apply(&listing));
        self.proceed();
    }

    /// The turns that follow at once.
    fn proceed(&mut self) {
        for _ in 0..100 {
            if !self.core.has_more() {
                break;
            }
            ready(self.core.proceed());
        }
    }

    pub fn tick(&mut self, millis: u64) {
        self.world.borrow_mut().now += Duration::from_millis(millis);
        ready(self.core.retry());
        self.proceed();
        ready(self.core.repair(Scope::All));
        let mut world = self.world.borrow_mut();
        let tables = &world.tables;
        let is_excused = world.faults.fired || world.damaged;
        let same = tables.lists.keys().eq(tables.policies.keys()) || is_excused;
        let World {
            tables,
            lost_policies,
            ..
        } = &mut *world;
        // A policy that no pod uses is not compared until one does.
        lost_policies.retain(|id| tables.lists.contains_key(id));
        world.damaged &= !self.core.repair_problems().is_empty() || !world.lost_policies.is_empty();
        world.require(same, || {
            "there are lists of a policy without its row".to_owned()
        });
    }

    /// The plugin sends a request for a pod in its own namespace, which is created if necessary.
    fn attach(&mut self, slot: usize, kind: u32) {
        let Some(pod) = self.pods.get(&slot).cloned() else {
            return;
        };
        let (sandbox, inode) = self.sandbox(&pod, kind);
        let answer = self.ask(&sandbox);
        let row = self.has_row(&pod.name, inode);
        let mut world = self.world.borrow_mut();
        let is_excused = world.faults.crashed || world.damaged;
        let agrees = is_excused || answer != CniAnswer::Enrolled || row;
        world.require(agrees, || format!("{answer:?} for a pod without a row"));
    }

    /// A sandbox of a pod, in a namespace of the given kind if it has none.
    pub fn sandbox(&self, pod: &Pod, kind: u32) -> (Sandbox, NetnsInode) {
        let mut world = self.world.borrow_mut();
        let netns = own_path(pod, world.api);
        let at = world.paths.get(&netns).copied();
        let cookie = at.unwrap_or_else(|| world.make_namespace(&pod.uid, kind));
        world.paths.insert(netns.clone(), cookie);
        let inode = world.namespaces[&cookie].inode;
        let sandbox = Sandbox {
            namespace: pod.name.namespace.clone(),
            name: pod.name.name.clone(),
            uid: pod.uid.clone(),
            container: pod.uid.clone(),
            netns,
            inode: inode.get(),
            descriptor: 3,
        };
        (sandbox, inode)
    }

    /// The plugin sends a request for a sandbox.
    pub fn ask(&mut self, sandbox: &Sandbox) -> CniAnswer {
        let found = Found {
            path: sandbox.netns.clone(),
            inode: Some(NetnsInode::new(sandbox.inode)),
            doubt: None,
        };
        ready(self.core.attach(sandbox, &found))
    }

    pub fn has_row(&self, name: &PodRef, inode: NetnsInode) -> bool {
        let world = self.world.borrow();
        let mut all = world.tables.pods.values();
        all.any(|row| row.pod == *name && row.inode == inode)
    }

    fn change_routes(&mut self, slot: usize, number: u32) {
        let Some(pod) = self.pods.get(&slot) else {
            return;
        };
        let cookies = cookies_of(&self.world.borrow(), pod);
        for cookie in &cookies {
            let mut world = self.world.borrow_mut();
            if let Some(namespace) = world.namespaces.get_mut(cookie) {
                match number % 3 {
                    0 => {
                        namespace.routes.insert(number % 7, 2 + number % 2);
                    }
                    1 => {
                        namespace.routes.remove(&(number % 7));
                    }
                    _ => namespace.has_v6 = true,
                }
            }
        }
        ready(self.core.namespaces_changed(&cookies.into_iter().collect()));
    }
}

fn start(world: &Rc<RefCell<World>>, sabotage: Sabotage) -> Core<FakeNode> {
    world.borrow_mut().attach_hooks();
    let node = FakeNode::new(Rc::clone(world), sabotage);
    ready(Core::new(node, Mesh::new(Enroll::Injected))).expect("the tables can be read")
}

fn sandbox_path(uid: &str) -> PathBuf {
    PathBuf::from(format!("/run/netns/cni-{uid}"))
}

/// The path of a pod's namespace, if it has one.
pub fn own_path(pod: &Pod, api: bool) -> PathBuf {
    if api {
        return sandbox_path(&pod.uid);
    }
    PathBuf::from(format!("/run/netns/{}", pod.name.name))
}

/// Namespaces that a pod is found in.
pub fn cookies_of(world: &World, pod: &Pod) -> Vec<NetnsCookie> {
    let path = world.paths.get(&own_path(pod, world.api)).copied();
    let processes = world.processes.values().filter(|it| it.uid == pod.uid);
    let processes = processes.map(|it| it.cookie).filter(|_| world.api);
    let mut all: Vec<NetnsCookie> = path.into_iter().chain(processes).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The namespace a pod's next process starts in.
fn namespace_of(world: &mut World, pod: &Pod, kind: u32) -> NetnsCookie {
    if let Some(cookie) = cookies_of(world, pod).first() {
        return *cookie;
    }
    let cookie = world.make_namespace(&pod.uid, kind);
    if !world.api {
        world.paths.insert(own_path(pod, false), cookie);
    }
    cookie
}

/// Processes of deleted pods end.
pub fn end_deleted(world: &mut World, uids: &[String]) {
    let all = world.processes.iter();
    let deleted: Vec<u32> = all
        .filter(|(_, it)| !uids.contains(&it.uid))
        .map(|(pid, _)| *pid)
        .collect();
    for pid in deleted {
        world.end_process(pid);
    }
}
