//! The daemon: wires sources, reconciler, control socket, metrics, events and the CNI plugin.
//!
//! Two threads. The reconciler has one of its own; the main thread has everything else, so that the
//! control socket and the metrics port answer whatever the reconciler is doing.

mod fast_poll;
mod follow;
mod inbox;
mod plugin_files;
mod reconciler_thread;
mod worker;
mod ztunnel;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, bail};
use axum::Router;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync,
    task::JoinHandle,
};
use tracing::{Level, info, warn};

use self::{
    follow::Follower, inbox::Inbox, plugin_files::PluginFiles, reconciler_thread::ReconcilerThread,
    worker::Parts, ztunnel::Publisher,
};
use crate::observe::{
    history::{self, History},
    kept_file, last_policies,
    status::Status,
    trace::Tracer,
    watch,
};
use crate::server::{
    control_socket::Socket, metrics_http, probe_port::ProbePort, reader::Reader, service_manager,
};
use crate::{
    cleanup,
    cni::upkeep::Plugin,
    sources::{
        Source,
        cluster::{Cluster, Ending, Reporter},
        cni_requests::CniQueue,
        pods_dir::PodsDir,
    },
};
use sidetrack_base::{
    mesh_settings::{MeshSettings, last_defaults},
    runtime,
};
use sidetrack_datapath::{
    foreign_files,
    kernel::{
        Datapath, cgroup,
        kernel_log::{KernelLog, LogLevel},
        maps::Maps,
        pins::Pins,
        probe, sys,
    },
};
use sidetrack_live::history::Kind;
use sidetrack_policy::{PodRef, reader::Readers};

/// How long the end waits for the reconciler's thread to stop: with all else that may hang the end takes five seconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The same where everything is to be removed. Far less than kubelet's grace period, which has to last for that as well.
const UNINSTALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an agent whose DaemonSet is deleted waits to learn whether it is an uninstall. Together they are
/// shorter than the pod's terminationGracePeriodSeconds.
const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a write of a file beside the socket may keep the end.
const KEEP_TIMEOUT: Duration = Duration::from_millis(500);

/// Where pods come from.
#[derive(Clone, Debug)]
pub enum Pods {
    /// A directory of manifests.
    Directory(PathBuf),
    /// The API server.
    Node {
        /// This node's name.
        name: String,
        /// The DaemonSet the agent belongs to.
        daemonset: Option<PodRef>,
        /// Whether to remove the taint from the node once the agent is ready.
        remove_taint: bool,
    },
}

/// Configuration of the daemon.
#[derive(Debug)]
pub struct Config {
    /// Where pods come from.
    pub pods: Pods,
    /// The cgroup that holds all pods, if it is not to be searched.
    pub cgroup: Option<PathBuf>,
    /// Path of the node's network namespace.
    pub node_netns: PathBuf,
    /// Mount point of the bpf filesystem.
    pub bpffs: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// What to do about the CNI plugin.
    pub plugin: Plugin,
    /// Where to answer `/metrics`, `/healthz` and `/readyz`.
    pub metrics_addr: Option<SocketAddr>,
    /// How many single pods the metrics show.
    pub metrics_per_pod: usize,
    /// Whom to answer besides, at the same address.
    pub readers: Readers,
    /// Where to answer `/healthz` and `/readyz` on the node's 127.0.0.1.
    pub probe_port: Option<u16>,
    /// Where to serve ztunnel, if pods in ambient mode are enrolled.
    pub ztunnel: Option<PathBuf>,
}

/// Runs the daemon, with settings for all pods, until it receives a signal to stop.
///
/// # Errors
/// If it cannot start, or cannot continue.
pub async fn run(config: Config, settings: MeshSettings) -> Result<()> {
    let mut daemon = Daemon::start(&config, settings).await?;
    let mut follow = pin!(daemon.follower.run(daemon.reconciler.ready()));
    let mut failure = None;
    tokio::select! {
        failed = &mut follow => failure = failed.err(),
        ended = daemon.reconciler.ended() => ended?,
        _ = daemon.terminate.recv() => {}
        _ = daemon.interrupt.recv() => {}
    }
    service_manager::report_end();
    if let Some(error) = &failure {
        warn!("ending: {error:#}");
    }
    // A DaemonSet that is replaced is there again soon. The objects of an uninstall go one after the other. Without its
    // follower the agent hears of no more of them: what is undecided then stays.
    let decided = daemon.ending.wait_for(|it| *it != Ending::Undecided);
    tokio::select! {
        failed = follow, if failure.is_none() => failure = failed.err(),
        _ = tokio::time::timeout(DECISION_TIMEOUT, decided) => {}
    }
    daemon.server.abort();
    let _ = daemon.server.await;
    // Before an uninstall removes what they write. A disk that does not answer is not waited for.
    daemon.stop_keepers.send_replace(true);
    for keeper in daemon.keepers {
        let _ = tokio::time::timeout(KEEP_TIMEOUT, keeper).await;
    }
    let ending = *daemon.ending.borrow();
    if ending == Ending::Unknown {
        warn!(
            "whether sidetrack is uninstalled is not known, since the API server does not accept the agent's token: nothing is removed. If it is, apply deploy/kubernetes/cleanup, or run `sidetrack cleanup` on this node"
        );
    }
    if ending == Ending::Remove {
        info!("ending; sidetrack is uninstalled, so everything is removed from this node");
        uninstall(&config, daemon.reconciler).await?;
    } else {
        info!("ending; interception continues, `sidetrack cleanup` removes it");
        // Between two writes rather than in the middle of one. A reconciler that hangs is abandoned:
        // a successor repairs what is incomplete.
        daemon.reconciler.stop(STOP_TIMEOUT).await;
    }
    failure.map_or(Ok(()), Err)
}

/// A daemon that has started.
struct Daemon {
    follower: Follower,
    reconciler: ReconcilerThread,
    server: JoinHandle<()>,
    /// They write the files beside the socket.
    keepers: [JoinHandle<()>; 2],
    stop_keepers: sync::watch::Sender<bool>,
    terminate: Signal,
    interrupt: Signal,
    ending: sync::watch::Receiver<Ending>,
}

impl Daemon {
    async fn start(config: &Config, settings: MeshSettings) -> Result<Self> {
        probe::capabilities().map_err(anyhow::Error::msg)?;
        probe::kernel().map_err(anyhow::Error::msg)?;
        raise_file_limit();
        sys::keep_little_memory();
        foreign_files::use_helper();
        let source = source(&config.pods).await?;
        let mut settings =
            settings.on_this_node(probe::ingress_ifindex(), probe::ingress_programs());
        let pins = Pins::new(&config.bpffs)?;
        let mesh = settings.start(defaults_file(&config.socket, &pins))?;
        let given = config.cgroup.as_deref();
        let cgroup = cgroup::find(given)?;
        // Before anything is attached: a start that fails leaves nothing behind.
        let listeners = Listeners::bind(config).await?;
        let ztunnel = Publisher::start(config.ztunnel.as_deref(), &source)?;
        let ambient = ztunnel.as_ref().map(Publisher::table);
        let (reporter, taint, ending) = cluster_parts(&source, &config.pods);
        let reader = reader(&source, config);
        let (mut datapath, kernel_log) = load(&listeners, &pins, &cgroup, given).await?;
        datapath.node_netns.clone_from(&config.node_netns);
        let history = open_history(&config.socket);
        let status = Status::new(
            Maps::open(&pins)?,
            pins.clone(),
            Arc::clone(&datapath.removed_counts),
            datapath.queues.clone(),
            history,
            ambient.clone(),
        )?;
        info!(
            cgroup = %cgroup.display(),
            socket = %config.socket.display(),
            "hooks attached"
        );
        // Until here a signal just ends the process. A handled one would interrupt the verifier.
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let (cni_queue, cni_routes) = CniQueue::new(status.timings(), ambient);
        let routes = cni_routes.merge(Tracer::routes(pins, Arc::clone(&status)));
        let more = reader.map_or_else(Router::new, Reader::routes);
        let of_ztunnel = ztunnel.iter().map(|it| it.socket.clone());
        let sockets = of_ztunnel.chain([listeners.socket.file().clone()]);
        let sockets = sockets.collect();
        let server = listeners.serve(&status, routes, config.metrics_per_pod, more);
        tokio::spawn(kernel_log.forward());
        let (stop_keepers, stop) = sync::watch::channel(false);
        let keepers = start_observers(&status, &config.socket, &stop);
        let inbox = Arc::new(Inbox::default());
        let follow_cgroups = matches!(source, Source::Cluster(_));
        let mut follower = Follower {
            source,
            settings,
            inbox: Arc::clone(&inbox),
            status: Arc::clone(&status),
            sockets,
            plugin: PluginFiles::new(config.plugin.clone()),
            taint,
            problems: Vec::new(),
        };
        follower.relist();
        follower.publish_problems();
        let parts = Parts {
            datapath,
            mesh,
            cni_queue,
            status,
            reporter,
            ztunnel,
            follow_cgroups,
        };
        Ok(Self {
            follower,
            reconciler: ReconcilerThread::start(parts, inbox)?,
            server,
            keepers,
            stop_keepers,
            terminate,
            interrupt,
            ending,
        })
    }
}

/// Loads and attaches the kernel programs, which takes seconds, while it is answered that the agent starts.
async fn load(
    listeners: &Listeners,
    pins: &Pins,
    cgroup: &Path,
    given: Option<&Path>,
) -> Result<(Datapath, KernelLog)> {
    let probes = listeners.probes.as_ref().map(ProbePort::answer_start);
    let answers = probes.into_iter().chain([listeners.socket.answer_start()]);
    let answers: Vec<_> = answers.collect();
    let (pins, cgroup, given) = (pins.clone(), cgroup.to_owned(), given.map(Path::to_owned));
    let open = move || Datapath::open(pins, &cgroup, given.as_deref(), kernel_log_level());
    let loaded = runtime::blocking(open).await;
    for answers in answers {
        answers.abort();
    }
    loaded
}

/// The file with the defaults that pods were last enrolled with.
fn defaults_file(socket: &Path, pins: &Pins) -> PathBuf {
    let kept = last_defaults(socket);
    if pins.is_empty() {
        // Of an installation that is gone: no pod depends on them.
        let _ = fs::remove_file(&kept);
    }
    kept
}

/// What happened lately, of which the latest is that this agent has started.
fn open_history(socket: &Path) -> Arc<History> {
    let history = History::open(history::path(socket));
    let (version, pid) = (sidetrack_base::VERSION, std::process::id());
    history.add(
        Kind::AgentStarted,
        None,
        &format!("version {version}, pid {pid}"),
    );
    history
}

/// Where the agent answers.
struct Listeners {
    socket: Socket,
    metrics: Option<TcpListener>,
    probes: Option<ProbePort>,
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Self> {
        let socket = Socket::bind(&config.socket)?;
        let metrics = match config.metrics_addr {
            Some(address) => Some(metrics_http::bind(address).await?),
            None => None,
        };
        let probes = config.probe_port;
        let probes = probes.map(|port| ProbePort::bind(&config.node_netns, port));
        Ok(Self {
            socket,
            metrics,
            probes: probes.transpose()?,
        })
    }

    /// Answers until the process ends; `routes` are the control socket's besides its own, and `more` those of the port for
    /// metrics. Returns the task that serves the socket.
    fn serve(
        self,
        status: &Arc<Status>,
        routes: Router,
        per_pod: usize,
        more: Router,
    ) -> JoinHandle<()> {
        if let Some(listener) = self.metrics {
            let status = Arc::clone(status);
            tokio::spawn(metrics_http::serve(listener, status, per_pod, more));
        }
        if let Some(probes) = &self.probes {
            probes.answer_probes(Arc::clone(status));
        }
        tokio::spawn(self.socket.serve(Arc::clone(status), routes))
    }
}

/// Starts what looks at the kernel and at the reconciler's view again and again. Returns the tasks that write files.
fn start_observers(
    status: &Arc<Status>,
    socket: &Path,
    stop: &sync::watch::Receiver<bool>,
) -> [JoinHandle<()>; 2] {
    tokio::spawn(Arc::clone(status).keep_totals());
    tokio::spawn(watch::watch(Arc::clone(status)));
    tokio::spawn(service_manager::report(Arc::clone(status)));
    tokio::spawn(return_memory());
    let policies = last_policies::file(socket);
    [
        tokio::spawn(last_policies::keep(
            Arc::clone(status),
            policies,
            stop.clone(),
        )),
        tokio::spawn(kept_file::keep_history(Arc::clone(status), stop.clone())),
    ]
}

/// Returns free pages in the middle of the heap to the kernel. glibc itself returns only those at its end, and a list
/// of all rows, in a flood, leaves megabytes of small blocks.
async fn return_memory() {
    const POLL_INTERVAL: Duration = Duration::from_secs(10);
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        sys::trim_heap();
    }
}

/// What only an agent of a cluster has: Events, the node whose taint goes, the mark of an uninstall.
type ClusterParts = (
    Option<Reporter>,
    Option<(kube::Client, String)>,
    sync::watch::Receiver<Ending>,
);

fn cluster_parts(source: &Source, pods: &Pods) -> ClusterParts {
    let (
        Source::Cluster(cluster),
        Pods::Node {
            name, remove_taint, ..
        },
    ) = (source, pods)
    else {
        return (None, None, sync::watch::channel(Ending::Keep).1);
    };
    let taint = remove_taint.then(|| (cluster.client(), name.clone()));
    let reporter = Reporter::start(cluster.client(), name);
    (Some(reporter), taint, cluster.ending())
}

/// Answers to readers. Without a DaemonSet no service account is theirs.
fn reader(source: &Source, config: &Config) -> Option<Reader> {
    let (
        Source::Cluster(cluster),
        Pods::Node {
            name,
            daemonset: Some(own),
            ..
        },
    ) = (source, &config.pods)
    else {
        return None;
    };
    if config.readers == Readers::None {
        return None;
    }
    let places = (config.socket.clone(), config.bpffs.clone());
    let asked = (cluster.client(), config.readers);
    Some(Reader::new(asked, name, &own.namespace, places))
}

async fn source(pods: &Pods) -> Result<Source> {
    match pods {
        Pods::Directory(path) => Ok(Source::Directory(PodsDir::new(path)?)),
        Pods::Node {
            name, daemonset, ..
        } => {
            if std::process::id() == 1 {
                bail!(
                    "this is process 1 of a pid namespace of its own, in which the pods' processes cannot be seen: run the agent with hostPID: true"
                );
            }
            let cluster = Cluster::new(name, daemonset.as_ref()).await?;
            Ok(Source::Cluster(Box::new(cluster)))
        }
    }
}

/// Removes everything from the node.
async fn uninstall(config: &Config, reconciler: ReconcilerThread) -> Result<()> {
    // The entry goes first: as long as it is there and no agent answers, no pod can start.
    let entry_removed = plugin_files::remove(&config.plugin).await;
    // A reconciler that still runs would write into what is being removed: rows and links could stay
    // behind without an owner. It also holds the lock that the removal takes. So with one that hangs
    // the hooks stay complete, pods stay intercepted, and the removal is a task of `sidetrack cleanup`.
    if !reconciler.stop(UNINSTALL_TIMEOUT).await {
        entry_removed?;
        bail!(
            "the reconciler has not stopped within {} s, so its hooks stay: run `sidetrack cleanup` on this node",
            UNINSTALL_TIMEOUT.as_secs()
        );
    }
    let (_, problem) = cleanup::everything(&config.bpffs, &config.socket, None)?;
    problem.map_or(Ok(()), Err)?;
    entry_removed
}

/// Every enrolled pod takes a descriptor: raises the limit as far as this process may.
fn raise_file_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Every decision if the log shows them, otherwise only what must not happen.
fn kernel_log_level() -> LogLevel {
    if tracing::enabled!(target: "sidetrack_core", Level::DEBUG) {
        LogLevel::DECISIONS
    } else {
        LogLevel::WARNINGS
    }
}
