//! The agent's socket: HTTP over a unix socket that only root may open.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use axum::{Extension, Json, Router, extract::State, routing::get};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use sidetrack_common::{conn::CountKey, ids::NetnsCookie, names::HANDSHAKE_SHARE, rule::Rule};
use tokio::{net::UnixListener, sync::Semaphore};

use crate::{
    api::{AgentStatus, Connections, NetnsStatus, PodState, PodStatus},
    kernel::{maps::Maps, usage::Usage},
    reconcile::Reconciler,
    sandboxes::Peer,
    web::{Figures, state_label},
};

/// What the socket answers from. The reconciler publishes, requests read.
#[derive(Debug)]
pub struct Published {
    maps: Maps,
    started: Instant,
    state: RwLock<Snapshot>,
    /// Milliseconds from the start to the last turn of the agent's loop.
    turned: AtomicU64,
    totals: Mutex<Totals>,
    full: tokio::sync::Mutex<Option<(Instant, Full)>>,
}

/// How full the kernel's maps are.
#[derive(Clone, Debug, Default)]
struct Full {
    maps: Vec<Usage>,
    /// Network namespaces with nearly all the handshakes that one may have, and how many.
    crowded: Vec<(NetnsCookie, u64)>,
}

/// Connections to the socket at a time: far more than pods start at once, and few enough to leave
/// descriptors for the pods themselves.
const CONNECTIONS: usize = 512;
/// How long one may say nothing. Pods that start wait behind it.
const SILENT: Duration = Duration::from_secs(2);
/// After a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// How often maps are counted at most, whoever asks: one may have a million rows.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// Connections by rule that never become fewer, although a pod's counters go with the pod.
#[derive(Debug, Default)]
struct Totals {
    last: HashMap<CountKey, u64>,
    by_rule: BTreeMap<&'static str, u64>,
    counted: Option<Instant>,
}

impl Totals {
    fn take(&mut self, counters: Vec<(CountKey, u64)>) {
        for (key, count) in &counters {
            let before = self.last.get(key).copied().unwrap_or_default();
            // Fewer than before: its pod left and came back.
            let more = count.checked_sub(before).unwrap_or(*count);
            if let Some(rule) = Rule::from_number(key.rule) {
                *self.by_rule.entry(rule.name()).or_default() += more;
            }
        }
        self.last = counters.into_iter().collect();
        self.counted = Some(Instant::now());
    }
}

#[derive(Clone, Debug, Default)]
struct Snapshot {
    pods: Vec<PodStatus>,
    problems: Vec<String>,
    ready: bool,
    cgroup: String,
    /// By kind.
    repairs: BTreeMap<&'static str, u64>,
}

impl Published {
    /// Nothing published yet.
    #[must_use]
    pub fn new(maps: Maps) -> Arc<Self> {
        Arc::new(Self {
            maps,
            started: Instant::now(),
            state: RwLock::default(),
            turned: AtomicU64::new(0),
            totals: Mutex::default(),
            full: tokio::sync::Mutex::default(),
        })
    }

    /// Publishes the reconciler's view.
    pub fn publish(&self, reconciler: &Reconciler, problems: Vec<String>, ready: bool) {
        let pods = reconciler
            .pods()
            .map(|(name, entry)| {
                let enrollment = entry.enrollment();
                PodStatus {
                    namespace: name.namespace.clone(),
                    name: name.name.clone(),
                    uid: entry.uid.clone(),
                    origin: entry.origin.clone(),
                    state: entry.state(),
                    reason: entry.reason().map(str::to_owned),
                    notes: enrollment
                        .map(|enrollment| enrollment.notes())
                        .unwrap_or_default(),
                    netns: enrollment.map(|enrollment| NetnsStatus {
                        path: enrollment.path.display().to_string(),
                        inode: enrollment.inode.get(),
                        cookie: enrollment.cookie.get(),
                    }),
                    policy_id: enrollment.map(|enrollment| enrollment.policy_id.get()),
                    policy: enrollment
                        .and_then(|enrollment| serde_json::to_value(&enrollment.policy).ok()),
                    ipv6: enrollment.is_some_and(|enrollment| enrollment.rows.captures_v6()),
                    listener: false,
                    before_sidecar: false,
                    connections: Connections::default(),
                }
            })
            .collect();
        let snapshot = Snapshot {
            pods,
            problems: [reconciler.problems(), problems].concat(),
            ready,
            cgroup: reconciler.cgroup().display().to_string(),
            repairs: reconciler.repair_counts(),
        };
        *self
            .state
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner()) = snapshot;
    }

    /// The agent's loop has turned.
    pub fn turned(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.turned.store(now, Ordering::Relaxed);
    }

    /// How long ago it last did.
    pub fn silent_for(&self) -> Duration {
        let turned = Duration::from_millis(self.turned.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(turned)
    }

    /// Whether the first full list is applied.
    pub fn is_ready(&self) -> bool {
        self.snapshot_ref().ready
    }

    /// Adds up the kernel's counters. To be called before a pod's counters go, and now and then.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn count(&self) -> io::Result<()> {
        let counters = self.maps.counts.sums()?;
        self.totals().take(counters);
        Ok(())
    }

    /// Figures for people who watch many nodes.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read.
    pub async fn figures(self: &Arc<Self>) -> io::Result<Figures> {
        // Reading all counters takes a while, and anybody may ask.
        let fresh = |at: Instant| at.elapsed() < Duration::from_secs(1);
        if !self.totals().counted.is_some_and(fresh) {
            self.count()?;
        }
        let full = self.full().await?;
        let snapshot = self.snapshot_ref();
        let mut pods = [
            PodState::Enrolled,
            PodState::Waiting,
            PodState::Rejected,
            PodState::NotTaken,
        ]
        .map(|state| (state_label(state), 0))
        .into_iter()
        .collect::<BTreeMap<_, _>>();
        for pod in &snapshot.pods {
            *pods.entry(state_label(pod.state)).or_default() += 1;
        }
        Ok(Figures {
            pods,
            problems: (snapshot.problems.len() + full.problems(&snapshot.pods).len()) as u64,
            connections: self.totals().by_rule.clone(),
            maps: full.maps,
            repairs: snapshot.repairs.clone(),
        })
    }

    /// How full the maps are, or were a moment ago. Counted beside the agent's loop, for which pods wait,
    /// and once for all who ask.
    async fn full(self: &Arc<Self>) -> io::Result<Full> {
        let mut known = self.full.lock().await;
        if let Some((at, full)) = &*known
            && at.elapsed() < COUNT_EVERY
        {
            return Ok(full.clone());
        }
        let published = Arc::clone(self);
        let counting = tokio::task::spawn_blocking(move || {
            io::Result::Ok(Full {
                maps: published.maps.usage()?,
                crowded: published.maps.crowded()?,
            })
        });
        let full = counting.await??;
        *known = Some((Instant::now(), full.clone()));
        Ok(full)
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn snapshot_ref(&self) -> RwLockReadGuard<'_, Snapshot> {
        self.state
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn snapshot(&self) -> Snapshot {
        self.snapshot_ref().clone()
    }
}

impl Full {
    /// What people should know of it.
    fn problems(&self, pods: &[PodStatus]) -> Vec<String> {
        let name = |cookie: NetnsCookie| {
            let of_cookie = |netns: &NetnsStatus| netns.cookie == cookie.get();
            let pod = pods
                .iter()
                .find(|pod| pod.netns.as_ref().is_some_and(of_cookie));
            pod.map_or_else(|| format!("netns {cookie}"), PodStatus::full_name)
        };
        let crowded = self.crowded.iter().map(|(cookie, count)| {
            format!(
                "pod {}: {count} of its connections wait for its sidecar, which may be {HANDSHAKE_SHARE}; more are refused: restart the sidecar if it does not accept them",
                name(*cookie)
            )
        });
        let maps = self.maps.iter().filter_map(Usage::problem);
        maps.chain(crowded).collect()
    }
}

/// Adds listeners and connection counts from the kernel's maps to pods.
pub fn add_live_facts(pods: &mut [PodStatus], maps: &Maps) -> io::Result<()> {
    let listening = maps.listeners.keys()?;
    let passing = maps.before_sidecar.keys()?;
    let mut counts: HashMap<u64, Connections> = HashMap::new();
    for (key, count) in maps.counts.sums()? {
        add_count(counts.entry(key.netns).or_default(), &key, count);
    }
    for pod in pods {
        let Some(netns) = &pod.netns else { continue };
        // Without an agent the policy is not at hand; then any port's listener counts.
        let port = pod
            .policy
            .as_ref()
            .and_then(|policy| policy["inbound_port"].as_u64());
        pod.before_sidecar = passing.contains(&netns.cookie);
        pod.listener = listening.iter().any(|key| {
            key.netns == netns.cookie && port.is_none_or(|port| u64::from(key.port) == port)
        });
        pod.connections = counts.get(&netns.cookie).copied().unwrap_or_default();
    }
    Ok(())
}

fn add_count(connections: &mut Connections, key: &CountKey, count: u64) {
    let field = match Rule::from_number(key.rule) {
        Some(
            Rule::ProxyUidLocal
            | Rule::ProxyGidLocal
            | Rule::LocalCaptured
            | Rule::OutPortIncluded
            | Rule::AllOutbound
            | Rule::RangeIncluded,
        ) => &mut connections.outbound_redirected,
        Some(Rule::AllInbound | Rule::InPortIncluded | Rule::VirtualInterface) => {
            &mut connections.inbound_redirected
        }
        Some(Rule::BeforeSidecar) => &mut connections.before_sidecar,
        Some(
            Rule::NoRoute
            | Rule::NoPolicy
            | Rule::NoStorage
            | Rule::HandshakesFull
            | Rule::NoListener
            | Rule::NoSource,
        ) => &mut connections.refused,
        _ => &mut connections.untouched,
    };
    *field += count;
}

/// A bound socket; its file goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    _file: RemoveOnDrop,
}

impl Socket {
    /// Binds the socket in the place of one that an agent which has ended left behind.
    pub fn bind(path: &Path) -> Result<Self> {
        remove_socket(path)?;
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let listener =
            UnixListener::bind(path).with_context(|| format!("bind {}", path.display()))?;
        let file = RemoveOnDrop(path.to_owned());
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .with_context(|| format!("set the mode of {}", path.display()))?;
        Ok(Self {
            listener,
            _file: file,
        })
    }

    /// Answers until dropped; `more` are routes that others answer.
    pub async fn serve(self, published: Arc<Published>, more: Router) -> Result<()> {
        let Self { listener, _file } = self;
        let router = Router::new()
            .route("/v1/status", get(status))
            .route("/v1/pods", get(pods))
            .with_state(published)
            .merge(more);
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let place = Arc::clone(&places).acquire_owned().await?;
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!("accept a connection on the socket: {error}");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let router = router.clone().layer(Extension(Peer::of(&stream)));
            let connection = http1::Builder::new()
                .keep_alive(false)
                .timer(TokioTimer::new())
                .header_read_timeout(SILENT)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!("connection on the socket: {error}");
                }
                drop(place);
            });
        }
    }
}

/// Whether an agent answers on a socket.
#[must_use]
pub fn is_answered(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}

/// Removes the socket of an agent that has ended; whether there was one.
///
/// # Errors
/// If an agent answers on it, or it is no socket.
pub fn remove_socket(path: &Path) -> Result<bool> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.with_context(|| format!("look at {}", path.display()))?,
    };
    if !meta.file_type().is_socket() {
        bail!(
            "{} is not a socket: pass another path to --socket",
            path.display()
        );
    }
    if is_answered(path) {
        bail!(
            "an agent answers on {}: stop it first, or pass another path to --socket",
            path.display()
        );
    }
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    Ok(true)
}

#[derive(Debug)]
struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

async fn status(State(published): State<Arc<Published>>) -> Json<AgentStatus> {
    let mut snapshot = published.snapshot();
    match published.full().await {
        Ok(full) => snapshot.problems.extend(full.problems(&snapshot.pods)),
        Err(error) => tracing::error!("read the kernel's maps: {error}"),
    }
    Json(AgentStatus {
        version: crate::VERSION.to_owned(),
        pid: std::process::id(),
        uptime_seconds: published.started.elapsed().as_secs(),
        cgroup: snapshot.cgroup,
        ready: snapshot.ready,
        repairs: snapshot.repairs.values().sum(),
        problems: snapshot.problems,
    })
}

async fn pods(State(published): State<Arc<Published>>) -> Json<Vec<PodStatus>> {
    let mut pods = published.snapshot().pods;
    if let Err(error) = add_live_facts(&mut pods, &published.maps) {
        tracing::error!("read the kernel's maps: {error}");
    }
    Json(pods)
}
