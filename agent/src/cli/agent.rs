//! `sidetrack agent`: the daemon.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sidetrack_policy::manifest::is_name;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::{Level, error, info};

use super::{
    LogFormat, Places, blocking, cleanup,
    install_cni::CniFlags,
    mesh::{MeshFlags, Settings},
    start_logging,
};
use crate::{
    cluster::{Reporter, taint::keep_away},
    cni::install::{Installation, Keeper},
    kernel::{Datapath, cgroup, kernel_log::LogLevel, maps::Maps, pins::Pins, probe},
    netns::processes::Processes,
    pod_cgroups::PodCgroups,
    reconcile::Reconciler,
    sandboxes::Desk,
    server::{Published, Socket},
    source::Source,
    web,
};
use sidetrack_policy::{PodRef, mesh::Mesh, select::Enroll};

/// How often what could not be done is tried again, and vanished namespaces are noticed.
const RETRY: Duration = Duration::from_millis(500);
/// How often a pod is looked for whose cgroup has just been made, and for how long.
const HURRY: Duration = Duration::from_millis(5);
const HURRY_FOR: Duration = Duration::from_secs(5);
/// Netlink tells of one change in several messages: wait this long for the rest.
const SETTLE: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Take pods from a directory of Pod manifests (YAML or JSON) instead of the API server; each names
    /// its network namespace by the annotation sidetrack.dev/netns
    #[arg(long, value_name = "DIR")]
    pods_dir: Option<PathBuf>,
    /// This node's name in Kubernetes
    #[arg(
        long,
        value_name = "NAME",
        env = "NODE_NAME",
        required_unless_present = "pods_dir",
        value_parser = node_name
    )]
    node_name: Option<String>,
    /// Which sidecar pods to take: those labeled sidetrack.dev/interception=enabled, themselves or by
    /// their namespace, or all but those labeled disabled [default: labeled; injected with --pods-dir]
    #[arg(long, value_enum)]
    enroll: Option<Enroll>,
    #[command(flatten)]
    mesh: MeshFlags,
    /// The cgroup that holds all pods [default: kubelet's, else the root of the cgroup2 mount]
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
    /// The DaemonSet this agent belongs to: when it has been deleted, the agent takes everything away
    /// with it as it ends
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "pods_dir")]
    daemonset: Option<PodRef>,
    /// Remove the taint sidetrack.dev/not-ready from the node once the agent is ready
    #[arg(long, conflicts_with = "pods_dir")]
    remove_taint: bool,
    /// Keep the CNI plugin in this directory of plugins, such as /opt/cni/bin, so that pods start only
    /// when they are intercepted
    #[arg(long, value_name = "DIR", requires = "cni_conf_dir")]
    cni_bin_dir: Option<PathBuf>,
    /// Keep the plugin's entry in the network configuration in this directory, such as /etc/cni/net.d
    #[arg(long, value_name = "DIR", requires = "cni_bin_dir")]
    cni_conf_dir: Option<PathBuf>,
    /// Take the plugin's entry away instead, and leave the binary
    #[arg(long, requires = "cni_conf_dir")]
    cni_remove: bool,
    /// The agent's socket as the node sees it, for the plugin [default: that of --socket]
    #[arg(long, value_name = "PATH", requires = "cni_conf_dir")]
    cni_socket: Option<PathBuf>,
    #[command(flatten)]
    cni: CniFlags,
    /// Answer /metrics, /healthz and /readyz here, such as 0.0.0.0:9446
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_addr: Option<SocketAddr>,
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

pub(super) fn run(options: Options) -> Result<ExitCode> {
    start_logging(options.log_format);
    blocking(serve(options))
}

async fn serve(options: Options) -> Result<ExitCode> {
    probe::capabilities().map_err(anyhow::Error::msg)?;
    probe::kernel().map_err(anyhow::Error::msg)?;
    raise_file_limit();
    let source = source(&options).await?;
    let enroll = options.enroll.unwrap_or(match source {
        Source::Directory(..) => Enroll::Injected,
        Source::Cluster(_) => Enroll::Labeled,
    });
    let mut settings = Settings::new(options.mesh.clone(), enroll).on_this_node();
    let mesh = settings.read()?;
    let pins = Pins::new(&options.places.bpffs)?;
    let cgroup = cgroup::find(options.cgroup.as_deref())?;
    // Before anything is attached: a start that fails leaves nothing behind.
    let socket = Socket::bind(&options.places.socket)?;
    let metrics = match options.metrics_addr {
        Some(address) => Some(web::bind(address).await?),
        None => None,
    };
    let reporter = match (&source, &options.node_name) {
        (Source::Cluster(cluster), Some(node)) => Some(Reporter::start(cluster.client(), node)),
        _ => None,
    };
    let taint = match (&source, &options.node_name) {
        (Source::Cluster(cluster), Some(node)) if options.remove_taint => {
            Some((cluster.client(), node.clone()))
        }
        _ => None,
    };
    let uninstalled = match &source {
        Source::Cluster(cluster) => cluster.uninstalled(),
        Source::Directory(..) => Arc::default(),
    };
    let given = options.cgroup.as_deref();
    let (datapath, kernel_log) = Datapath::open(pins.clone(), &cgroup, given, kernel_log_level())?;
    let published = Published::new(Maps::open(&pins)?);
    info!(
        cgroup = %cgroup.display(),
        socket = %options.places.socket.display(),
        "hooks attached"
    );
    // Until here a signal just ends the process. Handled, it would interrupt the verifier.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (desk, questions) = Desk::new();
    let server = tokio::spawn(socket.serve(Arc::clone(&published), questions));
    if let Some(listener) = metrics {
        tokio::spawn(web::serve(listener, Arc::clone(&published)));
    }
    tokio::spawn(kernel_log.forward());
    let pod_cgroups = match &source {
        Source::Cluster(_) => watch_cgroups(&cgroup),
        Source::Directory(..) => None,
    };
    let plugin = cni(&options)?;
    if let Some(plugin) = plugin.as_ref().filter(|_| options.cni_remove) {
        for what in plugin.remove(true)? {
            info!("CNI plugin: {what}");
        }
    }
    let kept = plugin.clone().filter(|_| !options.cni_remove);
    let agent = Agent {
        cni: kept.map(Keeper::new),
        source,
        settings,
        reporter,
        taint,
        desk,
        pod_cgroups,
        hurry_until: None,
        published: &published,
        ready: false,
        problems: Vec::new(),
    };
    let work = agent.follow(datapath, mesh);
    // Work may be left at any point: a successor takes over whatever state there is.
    tokio::select! {
        failed = work => failed?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    server.abort();
    let _ = server.await;
    if uninstalled.load(Ordering::Relaxed) {
        info!("ending; the DaemonSet is deleted, so nothing stays on this node");
        // First of all: nothing starts while the plugin asks and nobody answers.
        // The binary stays: CRI-O runs the plugins a pod was started with when it stops it.
        let removed = plugin.map_or(Ok(Vec::new()), |plugin| plugin.remove(true));
        cleanup::everything(&options.places)?;
        removed.context("remove the CNI plugin's entry: until it is gone no pod starts here")?;
    } else {
        info!("ending; interception goes on, `sidetrack cleanup` removes it");
    }
    Ok(ExitCode::SUCCESS)
}

/// Without it pods are found within half a second.
fn watch_cgroups(root: &Path) -> Option<PodCgroups> {
    PodCgroups::new(root)
        .inspect_err(|error| error!("new pods are found later: {error:#}"))
        .ok()
}

async fn appeared(cgroups: &mut Option<PodCgroups>) -> String {
    match cgroups {
        Some(cgroups) => cgroups.appeared().await,
        None => std::future::pending().await,
    }
}

/// The CNI plugin's place, if the agent is to keep it there.
fn cni(options: &Options) -> Result<Option<Installation>> {
    let (Some(bin_dir), Some(conf_dir)) = (&options.cni_bin_dir, &options.cni_conf_dir) else {
        if options.cni.any() {
            bail!(
                "--cni-timeout and --cni-exclude-namespaces are about the CNI plugin; say where it goes with --cni-bin-dir and --cni-conf-dir"
            );
        }
        return Ok(None);
    };
    let socket = options.cni_socket.as_ref();
    let socket = socket.unwrap_or(&options.places.socket);
    let own = options.daemonset.as_ref();
    let own = own.map(|daemonset| daemonset.namespace.as_str());
    let installation = options.cni.installation(bin_dir, conf_dir, socket, own);
    Ok(Some(installation))
}

async fn source(options: &Options) -> Result<Source> {
    match (&options.pods_dir, &options.node_name) {
        (Some(directory), _) => Source::directory(directory),
        (None, Some(node)) => {
            if std::process::id() == 1 {
                bail!(
                    "this is process 1 of a pid namespace of its own, in which the pods' processes cannot be seen: run the agent with hostPID: true"
                );
            }
            Source::cluster(node, options.daemonset.as_ref()).await
        }
        (None, None) => bail!("pass --pods-dir or --node-name"),
    }
}

/// A name the API server can have a node by.
fn node_name(text: &str) -> Result<String, String> {
    if is_name(text, 253) {
        Ok(text.to_owned())
    } else {
        Err("write the node's name as `kubectl get nodes` shows it".to_owned())
    }
}

/// The loop and what it is about.
struct Agent<'a> {
    cni: Option<Keeper>,
    source: Source,
    settings: Settings,
    reporter: Option<Reporter>,
    /// Where the taint is to be removed, until somebody is about that.
    taint: Option<(kube::Client, String)>,
    desk: Desk,
    pod_cgroups: Option<PodCgroups>,
    /// A pod is coming into being.
    hurry_until: Option<Instant>,
    published: &'a Published,
    ready: bool,
    /// What was wrong when it was last published.
    problems: Vec<String>,
}

impl Agent<'_> {
    /// Follows pods and namespaces; ends only by an error.
    async fn follow(mut self, datapath: Datapath, mesh: Mesh) -> Result<()> {
        let (changed_sender, mut changed) = mpsc::unbounded_channel();
        let mut reconciler = Reconciler::new(datapath, mesh, changed_sender).await?;
        self.relist(&mut reconciler).await;
        self.publish(&mut reconciler);

        let mut retry = interval(RETRY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A point in time, not a pause: whatever else happens must not put it off.
        let mut next_hurry = Instant::now();
        loop {
            tokio::select! {
                () = self.source.changed() => self.relist(&mut reconciler).await,
                Some(asked) = self.desk.next() => {
                    self.desk.take(asked, &mut reconciler, self.ready).await;
                }
                uid = appeared(&mut self.pod_cgroups) => {
                    tracing::debug!(uid, "a cgroup was made");
                    self.hurry_until = Some(Instant::now() + HURRY_FOR);
                }
                () = tokio::time::sleep_until(next_hurry), if self.hurry_until.is_some() => {
                    self.hurry(&mut reconciler).await;
                    next_hurry = Instant::now() + HURRY;
                }
                Some(cookie) = changed.recv() => {
                    tokio::time::sleep(SETTLE).await;
                    let mut cookies = BTreeSet::from([cookie]);
                    while let Ok(cookie) = changed.try_recv() {
                        cookies.insert(cookie);
                    }
                    reconciler.namespaces_changed(cookies).await;
                }
                _ = retry.tick() => {
                    let mesh = self.settings.changed();
                    let mut again = self.source.has_silently_changed()?;
                    if let Some(mesh) = mesh {
                        reconciler.set_mesh(mesh);
                        again = true;
                    }
                    if again {
                        self.relist(&mut reconciler).await;
                    }
                    reconciler.retry().await;
                    self.repair(&mut reconciler).await;
                    // Whoever asks before then would wait.
                    if self.ready && let Some(cni) = &mut self.cni {
                        cni.turn();
                    }
                }
            }
            self.desk.settle(&mut reconciler).await;
            self.publish(&mut reconciler);
            self.let_pods_come();
        }
    }

    /// Lets new pods come to the node, once everything that concerns them is in place.
    fn let_pods_come(&mut self) {
        let in_place = |cni: &Keeper| cni.is_in_place();
        if self.ready
            && self.cni.as_ref().is_none_or(in_place)
            && let Some((client, node)) = self.taint.take()
        {
            tokio::spawn(keep_away(client, node));
        }
    }

    /// Repairs what others have changed, and watches for new pods where they are now.
    async fn repair(&mut self, reconciler: &mut Reconciler) {
        if reconciler.repair().await && matches!(self.source, Source::Cluster(_)) {
            self.pod_cgroups = watch_cgroups(reconciler.cgroup());
        }
    }

    /// Looks for pods whose cgroups have just been made.
    async fn hurry(&mut self, reconciler: &mut Reconciler) {
        let Some(cgroups) = &self.pod_cgroups else {
            return;
        };
        let awaited = reconciler.awaited();
        let here: Vec<(String, &Path)> = awaited
            .filter_map(|uid| Some((uid.to_owned(), cgroups.of(uid)?)))
            .collect();
        let over = self.hurry_until.is_none_or(|until| until <= Instant::now());
        for (uid, cgroup) in here {
            reconciler
                .enroll_awaited(&uid, Processes::in_cgroup(cgroup))
                .await;
        }
        if over {
            self.hurry_until = None;
        }
    }

    /// Applies the pods as they are now. A source that cannot be read says nothing about its pods:
    /// they stay as they are.
    async fn relist(&mut self, reconciler: &mut Reconciler) {
        // A pod that leaves takes its counters with it.
        let _ = self.published.count();
        match self.source.list() {
            Ok(Some(listing)) => {
                reconciler.apply(&listing).await;
                self.ready = true;
            }
            Ok(None) => {}
            Err(problem) => {
                error!("{problem}");
                reconciler.cannot_list(problem);
            }
        }
    }

    /// Lets everybody know how things are now.
    fn publish(&mut self, reconciler: &mut Reconciler) {
        self.published.turned();
        for happening in reconciler.drain_events() {
            if let Some(reporter) = &self.reporter {
                reporter.report(happening);
            }
        }
        let mut problems = self.source.problems();
        problems.extend(self.settings.problem().map(str::to_owned));
        let cni = self.cni.as_ref();
        problems.extend(cni.and_then(Keeper::problem).map(str::to_owned));
        if reconciler.take_changed() || problems != self.problems {
            self.problems.clone_from(&problems);
            self.published.publish(reconciler, problems, self.ready);
        }
    }
}

/// Every enrolled pod takes a descriptor: as many as this process may have.
fn raise_file_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Every decision when somebody listens, otherwise what must not happen.
fn kernel_log_level() -> LogLevel {
    if tracing::enabled!(target: "sidetrack_ebpf", Level::DEBUG) {
        LogLevel::DECISIONS
    } else {
        LogLevel::WARNINGS
    }
}
