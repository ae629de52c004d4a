//! What the control socket and the metrics port answer from, whatever the reconciler is doing.
//!
//! Invariant: the reconciler publishes and requests read. The lock on the snapshot is held only to
//! exchange or copy it.

mod figures;

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use tokio::time::MissedTickBehavior;

use sidetrack_ambient::{Served, Table, workload_uid};

pub use self::figures::{Figures, PerPod, PodFigures};
use self::figures::{MapUsage, without_listener};
use crate::api::{AgentStatus, Cost, PodState, PodStatus, TraceEvent};
use crate::observe::{
    cost::{cost, own_process},
    counters::{ByResult, Totals, add_live_facts, add_sidecars},
    history::History,
    pinned_pods,
    refusals::{NewRefusals, Report},
    sidecars::Sidecars,
    snapshot::Snapshot,
    timings::Timings,
};
use sidetrack_base::runtime;
use sidetrack_datapath::kernel::{
    connection_counts::RemovedCounts, maps::Maps, memory, pins::Pins, queues::Queues,
};
use sidetrack_live::SidecarCounts;
use sidetrack_policy::{Policy, mesh::MeshName};

/// The shortest time between two counts of maps' rows, for all clients: a map may have a million.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// How old the counters of a scrape may be. Reading all of them takes a while, and every pod may
/// scrape them.
const FRESH: Duration = Duration::from_secs(1);

/// How many events `status` shows.
const LAST_EVENTS: usize = 3;

/// How often counters are added up after something has changed.
const TOTALS_INTERVAL: Duration = Duration::from_secs(5);

/// The agent's state for all clients.
#[derive(Debug)]
pub struct Status {
    maps: Maps,
    pins: Pins,
    removed_counts: Arc<RemovedCounts>,
    sidecars: Sidecars,
    history: Arc<History>,
    started: Instant,
    published: RwLock<Published>,
    /// Milliseconds from the start to the end of the reconciler's last turn.
    last_turn: AtomicU64,
    totals: Mutex<Totals>,
    timings: Arc<Timings>,
    usage: tokio::sync::Mutex<Option<(Instant, MapUsage)>>,
    /// What ztunnel serves, if the agent serves it.
    ambient: Option<Arc<Table>>,
    /// Files that could not be written, with the problem.
    unwritten: Mutex<BTreeMap<PathBuf, String>>,
}

#[derive(Debug, Default)]
struct Published {
    snapshot: Arc<Snapshot>,
    /// Problems of the sources and the settings, which the reconciler does not see.
    source_problems: Vec<String>,
}

impl Status {
    /// Nothing published yet.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read.
    pub fn new(
        maps: Maps,
        pins: Pins,
        removed_counts: Arc<RemovedCounts>,
        queues: Option<Arc<Queues>>,
        history: Arc<History>,
        ambient: Option<Arc<Table>>,
    ) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            totals: Mutex::new(Totals::from_now(&maps)?),
            maps,
            pins,
            removed_counts,
            sidecars: Sidecars::new(queues),
            history,
            started: Instant::now(),
            published: RwLock::default(),
            last_turn: AtomicU64::new(0),
            timings: Arc::default(),
            usage: tokio::sync::Mutex::default(),
            ambient,
            unwritten: Mutex::default(),
        }))
    }

    /// A file was written, or could not be. Answers the problem if it is new.
    pub fn note_unwritten(&self, file: &Path, problem: Option<String>) -> Option<String> {
        let mut unwritten = self.unwritten.lock();
        let Some(problem) = problem else {
            unwritten.remove(file);
            return None;
        };
        let before = unwritten.insert(file.to_owned(), problem.clone());
        (before.as_ref() != Some(&problem)).then_some(problem)
    }

    /// Publishes the reconciler's view.
    pub fn publish(&self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        // The old snapshot is freed after the lock is released.
        let _old = std::mem::replace(&mut self.published.write().snapshot, snapshot);
    }

    /// Publishes what is wrong with the sources and the settings.
    pub fn publish_source_problems(&self, problems: Vec<String>) {
        self.published.write().source_problems = problems;
    }

    /// The reconciler has completed a turn.
    pub fn turn_completed(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.last_turn.store(now, Ordering::Relaxed);
    }

    /// How long ago it last did.
    #[must_use]
    pub fn since_last_turn(&self) -> Duration {
        let last = Duration::from_millis(self.last_turn.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last)
    }

    /// Whether the first full list is applied.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.published.read().snapshot.ready
    }

    /// Adds up counters although no client asks for the totals: those of earlier policies leave room for others, and
    /// those of departed pods are not kept one by one. Does not end.
    pub async fn keep_totals(self: Arc<Self>) {
        let mut counted: Option<Arc<Snapshot>> = None;
        let mut turns = tokio::time::interval(TOTALS_INTERVAL);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let snapshot = self.snapshot();
            if counted
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, &snapshot))
            {
                continue;
            }
            let status = Arc::clone(&self);
            let update = move || {
                status
                    .totals
                    .lock()
                    .update(&status.maps, &status.removed_counts)
            };
            match runtime::blocking(update).await {
                Ok(()) => counted = Some(snapshot),
                Err(error) => tracing::error!("add up counters: {error}"),
            }
        }
    }

    /// Looks what sidecars do; the enrolled pods, with that and without what is counted, and the cookies of those
    /// whose listening sockets were replaced.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn look_at_sidecars(&self) -> io::Result<(Vec<PodStatus>, HashSet<u64>)> {
        let mut pods = self.enrolled()?;
        let replaced = self.sidecars.look(&self.maps, &pods)?;
        add_sidecars(&mut pods, &self.maps, self.sidecars.last().as_deref())?;
        Ok((pods, replaced))
    }

    /// The refusals that are new. `report` says what is done about those of a pod, by its cookie, and of a rule.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn new_refusals(
        &self,
        seen: &mut NewRefusals,
        report: impl Fn(u64, &str) -> Report,
    ) -> io::Result<Vec<TraceEvent>> {
        seen.look(&self.maps, report)
    }

    /// What happened lately.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The agent as a whole.
    pub async fn agent(self: &Arc<Self>) -> AgentStatus {
        let (snapshot, mut problems) = self.current();
        match self.map_usage().await {
            Ok(usage) => problems.extend(usage.problems()),
            Err(error) => problems.push(format!("the kernel's maps cannot be read: {error}")),
        }
        AgentStatus {
            version: sidetrack_base::VERSION.to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            cgroup: snapshot.cgroup.clone(),
            ready: snapshot.ready,
            repairs: snapshot.repairs.values().sum(),
            problems,
            notes: snapshot.notes.clone(),
            events: self.history.last(LAST_EVENTS),
        }
    }

    /// What sidetrack costs on this node.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read.
    pub async fn cost(self: &Arc<Self>) -> io::Result<Cost> {
        let usage = self.map_usage().await?;
        let agent = own_process(self.started.elapsed())?;
        // The rest was read some seconds ago.
        let known = self.known()?;
        let enrolled = known.pods.iter().filter(|pod| pod.netns.is_some()).count() as u64;
        Ok(cost(enrolled, &usage.memory, &usage.maps, Some(agent)))
    }

    /// The reconciler's view. Before it is ready it has also the pods that an earlier agent has enrolled: they stay
    /// intercepted.
    fn known(&self) -> io::Result<Arc<Snapshot>> {
        let mut snapshot = self.snapshot();
        if !snapshot.ready {
            pinned_pods::add_others(&mut Arc::make_mut(&mut snapshot).pods, &self.maps)?;
        }
        Ok(snapshot)
    }

    /// The enrolled ones of these pods.
    fn enrolled(&self) -> io::Result<Vec<PodStatus>> {
        let known = self.known()?;
        let enrolled = known.pods.iter().filter(|pod| pod.netns.is_some());
        Ok(enrolled.cloned().collect())
    }

    /// Every pod that is wanted, with what the kernel's maps know about it now.
    ///
    /// # Errors
    /// If the maps cannot be read.
    pub async fn pods(
        self: &Arc<Self>,
        is_wanted: impl Fn(&PodStatus) -> bool + Send + 'static,
    ) -> io::Result<Vec<PodStatus>> {
        let status = Arc::clone(self);
        runtime::blocking(move || status.count_pods(is_wanted)).await
    }

    fn count_pods(&self, is_wanted: impl Fn(&PodStatus) -> bool) -> io::Result<Vec<PodStatus>> {
        let known = self.known()?;
        let pods = known.pods.iter().filter(|pod| is_wanted(pod));
        let mut pods: Vec<PodStatus> = pods.cloned().collect();
        if let Some(table) = &self.ambient {
            add_served(&mut pods, table);
        }
        for netns in pods.iter_mut().filter_map(|pod| pod.netns.as_mut()) {
            netns.name_by_inode_if_gone();
        }
        let queues = self.sidecars.last();
        add_live_facts(&mut pods, &self.maps, queues.as_deref())?;
        Ok(pods)
    }

    /// Where waits are counted.
    #[must_use]
    pub fn timings(&self) -> Arc<Timings> {
        Arc::clone(&self.timings)
    }

    /// Figures for the metrics port, with those of at most `most_pods` single pods; 0 means of none.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read.
    pub async fn figures(self: &Arc<Self>, most_pods: usize) -> io::Result<Figures> {
        let usage = self.map_usage().await?;
        let (status, enrolled) = (Arc::clone(self), Arc::clone(&usage.pods));
        // Reading all counters takes a while; other clients are answered meanwhile.
        let counting = runtime::blocking(move || {
            let mut totals = status.totals.lock();
            // Locked while the kernel is read: of two readers, the later one to add must have read later.
            if totals.is_fresh(FRESH) {
                totals.leave_out_removed(&status.removed_counts);
            } else {
                totals.update(&status.maps, &status.removed_counts)?;
            }
            let per_pod =
                (most_pods > 0).then(|| PerPod::of(&enrolled, most_pods, &totals.by_pod()));
            let handshakes = status.maps.handshakes_by_reason()?;
            let by_rule = totals.by_rule().clone();
            io::Result::Ok((by_rule, totals.refusals(), handshakes, per_pod))
        });
        let (connections, refusals, handshakes, per_pod) = counting.await?;
        let (_, problems) = self.current();
        let snapshot = self.known()?;
        let mut pods: BTreeMap<_, _> = PodState::ALL.map(|state| (state.name(), 0)).into();
        let mut meshes: BTreeMap<_, _> = MeshName::ALL.map(|mesh| (mesh.name(), 0)).into();
        for mesh in snapshot.pods.iter().filter_map(PodStatus::mesh) {
            *meshes.entry(mesh.name()).or_default() += 1;
        }
        for pod in &snapshot.pods {
            *pods.entry(pod.state.name()).or_default() += 1;
        }
        let of_pods = snapshot.pods.iter().filter_map(PodStatus::problem).count()
            + usage.pods.iter().filter(|pod| pod.live_problem).count();
        let staying = usage.pods.iter().filter(|pod| !pod.terminating);
        Ok(Figures {
            ready: snapshot.ready,
            pods,
            meshes,
            problems: (problems.len() + usage.problems().len() + of_pods) as u64,
            connections,
            refusals,
            maps: usage.maps,
            memory: usage.memory,
            process: own_process(self.started.elapsed())?,
            handshakes,
            repairs: snapshot.repairs.clone(),
            timings: self.timings(),
            without_listener: without_listener(&usage.pods),
            sidecars: SidecarCounts::of(staying.map(|pod| &pod.sidecar)),
            per_pod,
        })
    }

    /// How full the maps are, or were a moment ago. Counted once for all clients, and to its end although
    /// the client may have gone: else each one that is impatient would begin anew.
    async fn map_usage(self: &Arc<Self>) -> io::Result<MapUsage> {
        let status = Arc::clone(self);
        tokio::spawn(async move { status.count_rows().await }).await?
    }

    async fn count_rows(self: Arc<Self>) -> io::Result<MapUsage> {
        let mut known = self.usage.lock().await;
        if let Some((at, usage)) = &*known
            && at.elapsed() < COUNT_INTERVAL
        {
            return Ok(usage.clone());
        }
        let status = Arc::clone(&self);
        let counting = runtime::blocking(move || {
            io::Result::Ok(MapUsage {
                maps: status.maps.usage()?,
                memory: memory::of_maps(&status.pins)?,
                crowded: status.maps.crowded()?,
                pods: status.pod_figures()?.into(),
            })
        });
        let usage = counting.await?;
        *known = Some((Instant::now(), usage.clone()));
        Ok(usage)
    }

    /// What the kernel's maps know of each enrolled pod.
    fn pod_figures(&self) -> io::Result<Vec<PodFigures>> {
        let mut pods = self.enrolled()?;
        let known: Vec<bool> = pods.iter().map(|pod| pod.problem().is_some()).collect();
        add_live_facts(&mut pods, &self.maps, self.sidecars.last().as_deref())?;
        let figures = pods.into_iter().zip(known).filter_map(|(pod, known)| {
            Some(PodFigures {
                live_problem: !known && pod.problem().is_some(),
                terminating: pod.terminating,
                namespace: pod.namespace,
                name: pod.name,
                cookie: pod.netns?.cookie,
                inbound_listener: pod.listener,
                outbound_listener: pod.outbound_listener,
                dns_listener: pod.dns_listener,
                sidecar: pod.sidecar.unwrap_or_default(),
                connections: ByResult::default(),
            })
        });
        Ok(figures.collect())
    }

    /// The reconciler's view after its last turn.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current().0
    }

    /// The last snapshot, and every problem but those of the maps.
    fn current(&self) -> (Arc<Snapshot>, Vec<String>) {
        let published = self.published.read();
        let problems = [
            published.snapshot.problems.as_slice(),
            &published.source_problems,
            self.ambient
                .iter()
                .filter_map(|table| table.problem())
                .chain(self.unwritten.lock().values().cloned())
                .collect::<Vec<_>>()
                .as_slice(),
        ]
        .concat();
        (Arc::clone(&published.snapshot), problems)
    }
}

/// Notes at pods in ambient mode that ztunnel does not serve.
fn add_served(pods: &mut [PodStatus], table: &Table) {
    for pod in pods {
        let is_ambient = |policy: &Arc<Policy>| policy.dialect.mesh() == MeshName::Ambient;
        if !pod.policy.as_ref().is_some_and(is_ambient) {
            continue;
        }
        let uid = workload_uid(pod.uid.as_deref(), &pod.namespace, &pod.name);
        let served = table.served(&uid);
        if served != Served::Yes {
            pod.notes.push(served.to_string());
        }
    }
}
