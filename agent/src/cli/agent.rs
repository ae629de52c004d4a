//! `sidetrack agent`: the daemon.

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Result;
use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};
use tracing::{Level, error, info};

use super::{
    LogFormat, Places, blocking,
    mesh::{MeshFlags, Source},
    start_logging,
};
use crate::{
    bpf::{Datapath, kernel_log::LogLevel, maps::Maps, pins::Pins, probe},
    cgroup,
    manifests::{Directory, Watch},
    mesh::Mesh,
    pod::Enroll,
    reconcile::Reconciler,
    server::{Published, Socket},
};

/// How often what could not be done is tried again, and vanished namespaces are noticed.
const RETRY: Duration = Duration::from_millis(500);
/// Netlink tells of one change in several messages: wait this long for the rest.
const SETTLE: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Directory of Pod manifests (YAML or JSON); each names its network namespace by the
    /// annotation sidetrack.dev/netns
    #[arg(long, value_name = "DIR")]
    pods_dir: PathBuf,
    /// Which sidecar pods to take: those labelled sidetrack.dev/interception=enabled, or all but
    /// those labelled disabled
    #[arg(long, value_enum, default_value = "injected")]
    enroll: Enroll,
    #[command(flatten)]
    mesh: MeshFlags,
    /// The cgroup that holds all pods [default: kubelet's, else the root of the cgroup2 mount]
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
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
    raise_file_limit();
    let directory = Directory::new(&options.pods_dir)?;
    let mut settings = Source::new(options.mesh, options.enroll);
    let mesh = settings.read()?;
    let pins = Pins::new(&options.places.bpffs)?;
    let cgroup = cgroup::find(options.cgroup.as_deref())?;
    // Before anything is attached: a start that fails leaves nothing behind.
    let socket = Socket::bind(&options.places.socket)?;
    let (datapath, kernel_log) = Datapath::open(pins.clone(), &cgroup, kernel_log_level())?;
    let published = Published::new(Maps::open(&pins)?, &cgroup);
    info!(
        cgroup = %cgroup.display(),
        pods_dir = %directory.path().display(),
        socket = %options.places.socket.display(),
        "hooks attached"
    );
    // Until here a signal just ends the process. Handled, it would interrupt the verifier.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = tokio::spawn(socket.serve(Arc::clone(&published)));
    tokio::spawn(kernel_log.forward());
    let work = follow(directory, datapath, settings, mesh, &published);
    // Work may be left at any point: a successor takes over whatever state there is.
    tokio::select! {
        failed = work => failed?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("ending; interception goes on, `sidetrack cleanup` removes it");
    server.abort();
    let _ = server.await;
    Ok(ExitCode::SUCCESS)
}

/// Follows manifests and namespaces; ends only by an error.
async fn follow(
    mut directory: Directory,
    datapath: Datapath,
    mut settings: Source,
    mesh: Mesh,
    published: &Published,
) -> Result<()> {
    let (changed_sender, mut changed) = mpsc::unbounded_channel();
    let mut reconciler = Reconciler::new(datapath, mesh, changed_sender)?;
    let mut watch = Watch::new(directory.path())?;
    relist(&mut directory, &mut reconciler).await;
    published.publish(&reconciler, settings.problem());

    let mut retry = interval(RETRY);
    retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = watch.changed() => relist(&mut directory, &mut reconciler).await,
            Some(cookie) = changed.recv() => {
                tokio::time::sleep(SETTLE).await;
                let mut cookies = BTreeSet::from([cookie]);
                while let Ok(cookie) = changed.try_recv() {
                    cookies.insert(cookie);
                }
                reconciler.namespaces_changed(cookies).await;
            }
            _ = retry.tick() => {
                let mesh = settings.changed();
                let changed = mesh.is_some();
                if let Some(mesh) = mesh {
                    reconciler.set_mesh(mesh);
                }
                let outdated = watch.is_outdated();
                if outdated {
                    watch = Watch::new(directory.path())?;
                }
                if changed || outdated {
                    relist(&mut directory, &mut reconciler).await;
                }
                reconciler.retry().await;
            }
        }
        published.publish(&reconciler, settings.problem());
    }
}

/// Applies the directory as it is now. An unreadable directory says nothing about its pods: they
/// stay as they are.
async fn relist(directory: &mut Directory, reconciler: &mut Reconciler) {
    match directory.list() {
        Ok(listing) => reconciler.apply(&listing).await,
        Err(error) => {
            let path = directory.path().display();
            let problem = format!("list {path}: {error}; its pods stay as they are");
            error!("{problem}");
            reconciler.problems = vec![problem];
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
