//! `sidetrack status`: kernel, hooks, pods and problems.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::AsFd,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use sidetrack_base::duration::{self, duration};
use sidetrack_live::SidecarCounts;
use sidetrack_policy::mesh::MeshName;

use super::{
    BPFFS, Format, Places, output,
    pod_name::{NamespaceFlag, PodName},
    pods,
};
use crate::{
    api::{AgentStatus, PodState, PodStatus},
    client::{Client, NoAnswer},
};
use sidetrack_datapath::kernel::{
    hooks::{CALLBACKS, CGROUP_HOOKS},
    pins::Pins,
    sys,
};

/// The name of [`SK_LOOKUP_PROGRAM`](sidetrack_datapath::kernel::hooks::SK_LOOKUP_PROGRAM)'s hook.
const INBOUND_HOOK: &str = "sk_lookup";
/// Pause between looks while waiting for a pod.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Wait until this pod is enrolled
    #[arg(long, value_name = "NAMESPACE/POD")]
    wait: Option<PodName>,
    #[command(flatten)]
    namespace: NamespaceFlag,
    /// How long to wait, such as 10s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, requires = "wait")]
    timeout: Duration,
    /// Exit with 1 also if there is a problem, a sidecar is down or hangs, or the agent is not ready
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Everything the command shows.
#[derive(Debug, Serialize)]
struct StatusReport {
    kernel: String,
    agent: Option<AgentStatus>,
    agent_state: AgentState,
    hooks: Vec<HookStatus>,
    /// Where the pods are from.
    pods_from: Source,
    /// Unknown if neither could be read.
    pods: Option<PodCounts>,
    /// Pods by the mesh whose rules they have, where that is known.
    meshes: BTreeMap<&'static str, usize>,
    /// Sidecars of enrolled pods by what they do; unknown as the pods.
    sidecars: Option<SidecarCounts>,
    notes: Vec<String>,
    problems: Vec<String>,
}

/// What is known of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum AgentState {
    Ready,
    Starting,
    NotRunning,
    /// It has the socket and says nothing.
    Silent,
    /// Nothing of sidetrack is on this node.
    NotInstalled,
    /// It may not be asked, or its answer is not understood.
    Unknown,
}

impl AgentState {
    fn of(answer: &Result<AgentStatus>) -> Self {
        match answer {
            Ok(agent) if agent.ready => Self::Ready,
            Ok(_) => Self::Starting,
            Err(error) => match error.downcast_ref::<NoAnswer>() {
                Some(NoAnswer::Absent { .. }) => Self::NotRunning,
                Some(NoAnswer::Silent { .. }) => Self::Silent,
                Some(
                    NoAnswer::NotSocket { .. } | NoAnswer::Foreign { .. } | NoAnswer::Denied { .. },
                )
                | None => Self::Unknown,
            },
        }
    }
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    Agent,
    PinnedMaps,
}

#[derive(Debug, Serialize)]
struct HookStatus {
    hook: &'static str,
    attached: bool,
    /// Of the connection callbacks, while they are on the pods' own cgroups only, and of the program for inbound
    /// connections: on how many pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<usize>,
    /// Of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_pods: Option<usize>,
    program_id: Option<u32>,
    link_id: Option<u32>,
    cgroup_id: Option<u64>,
}

impl HookStatus {
    /// What it means that it is not attached.
    fn problem(&self) -> String {
        let hook = self.hook;
        match (self.pods, self.of_pods) {
            (Some(pods), Some(of)) => format!(
                "hook {hook} is attached to {pods} of {of} pods: inbound connections of the others pass their sidecars until the agent has repaired it, or they have ended"
            ),
            _ => format!("hook {hook} is not attached: the agent attaches it again within 2 s"),
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct PodCounts {
    enrolled: usize,
    partial: usize,
    waiting: usize,
    rejected: usize,
    skipped: usize,
    /// Of those that have a policy: enrolled with an earlier one.
    outdated: usize,
}

impl PodCounts {
    fn of(pods: &[PodStatus]) -> Self {
        let mut counts = Self::default();
        for pod in pods {
            match pod.state {
                PodState::Enrolled => counts.enrolled += 1,
                PodState::Outdated => counts.outdated += 1,
                PodState::Partial => counts.partial += 1,
                PodState::Waiting => counts.waiting += 1,
                PodState::Rejected => counts.rejected += 1,
                PodState::Skipped => counts.skipped += 1,
            }
        }
        counts
    }
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    if options.wait.is_none() && options.namespace.is_given() {
        super::usage("-n is of use only with --wait NAMESPACE/POD: `sidetrack pods` lists pods");
    }
    if let Some(pod) = &options.wait {
        wait(&options.namespace.complete(pod), &options).await?;
    }
    let report = report(&options.places).await;
    if !output::print_value(options.output, &report)? {
        print(&report, options.output == Format::Wide)?;
    }
    let fine = if options.check {
        report.agent_state == AgentState::Ready
            && report.problems.is_empty()
            && report.sidecars.as_ref().is_some_and(SidecarCounts::is_fine)
    } else {
        report.agent.is_some()
    };
    Ok(if fine {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Asks at least once, whatever the time.
async fn wait(pod: &PodName, options: &Options) -> Result<()> {
    let client = Client::new(&options.places.socket);
    let begun = Instant::now();
    loop {
        let answer = client.get::<Vec<PodStatus>>("/v1/pods").await;
        let last = match answer {
            Ok(pods) => match pods::named(pods, pod) {
                Ok(found) if found.state == PodState::Enrolled => return Ok(()),
                Ok(found) => found.reason.unwrap_or_default(),
                Err(error) => format!("the agent does not know the pod: {error:#}"),
            },
            Err(error) => format!("{error:#}"),
        };
        let left = options.timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let waited = duration::text(options.timeout);
            bail!("pod {pod} is not enrolled after {waited}: {last}");
        }
        tokio::time::sleep(left.min(POLL)).await;
    }
}

async fn report(places: &Places) -> StatusReport {
    let client = Client::new(&places.socket);
    let answer: Result<AgentStatus> = client.get("/v1/status").await;
    let agent_state = AgentState::of(&answer);
    if agent_state == AgentState::NotRunning && has_no_pins(places) {
        return StatusReport::of_nothing(places);
    }
    let mut problems = Vec::new();
    let agent = answer
        .map_err(|error| problems.push(format!("{error:#}")))
        .ok();
    problems.extend(agent.iter().flat_map(|agent| agent.problems.clone()));
    let (pods_from, pods) = match &agent {
        Some(_) => (Source::Agent, client.get("/v1/pods").await),
        None => (Source::PinnedMaps, pods::pinned(places)),
    };
    let pods: Option<Vec<PodStatus>> = pods
        .map_err(|error| problems.push(format!("{error:#}")))
        .ok();
    let counts = pods.as_ref().map(|pods| PodCounts::of(pods));
    let meshes = meshes(pods.as_deref().unwrap_or_default());
    let sidecars = pods.as_ref().map(|pods| {
        let enrolled = pods.iter().filter_map(|pod| pod.sidecar.as_ref());
        SidecarCounts::of(enrolled)
    });
    let pods = pods.unwrap_or_default();
    problems.extend(pods.iter().filter_map(PodStatus::problem));
    let of_pods = pods.iter().flat_map(|pod| {
        let name = pod.full_name();
        pod.notes
            .iter()
            .map(move |note| format!("pod {name}: {note}"))
    });
    let of_node = agent.iter().flat_map(|agent| agent.notes.clone());
    let udp: u64 = pods.iter().map(|pod| pod.connections.udp).sum();
    let not_seen = (udp > 0).then(|| {
        format!(
            "enrolled pods have connected {udp} UDP sockets, which are not intercepted; datagrams of unconnected sockets, other protocols, and connections that the kernel itself makes (network file systems) are neither intercepted nor counted"
        )
    });
    let waits = pods.iter().filter_map(PodStatus::wait);
    let mut notes: Vec<String> = of_node
        .chain(of_pods)
        .chain(waits)
        .chain(not_seen)
        .collect();
    let hooks = hooks(places);
    if let Err(error) = &hooks {
        if agent.is_some() && Pins::new(&places.bpffs).is_err() {
            // As in a container that has the socket only. The agent itself knows of hooks that it cannot repair.
            notes.push(format!("hooks are not shown: {error:#}"));
        } else {
            problems.push(format!("{error:#}"));
        }
        // The maps are at the same place.
        problems.dedup();
    }
    let hooks = hooks.unwrap_or_default();
    let detached = hooks
        .iter()
        .filter(|hook| !hook.attached && agent.is_some());
    for hook in detached {
        // The agent says more of one that it cannot repair.
        let name = format!("hook {}", hook.hook);
        if !problems.iter().any(|problem| problem.contains(&name)) {
            problems.push(hook.problem());
        }
    }
    StatusReport {
        kernel: kernel(),
        agent,
        agent_state,
        hooks,
        pods_from,
        pods: counts,
        meshes,
        sidecars,
        notes,
        problems,
    }
}

/// Whether no agent has left anything here.
fn has_no_pins(places: &Places) -> bool {
    match Pins::new(&places.bpffs) {
        Ok(pins) => !pins.root().exists(),
        // Of another path nobody knows whether it is the right one.
        Err(_) => places.bpffs == Path::new(BPFFS),
    }
}

impl StatusReport {
    /// Of a node without an agent and without anything that one has left.
    fn of_nothing(places: &Places) -> Self {
        let (socket, bpffs) = (places.socket.display(), places.bpffs.display());
        Self {
            kernel: kernel(),
            agent: None,
            agent_state: AgentState::NotInstalled,
            hooks: Vec::new(),
            pods_from: Source::PinnedMaps,
            pods: Some(PodCounts::default()),
            meshes: BTreeMap::new(),
            sidecars: None,
            notes: Vec::new(),
            problems: vec![format!(
                "sidetrack is not installed here: no agent answers on {socket}, and none has left anything in {bpffs}; `sidetrack doctor` says whether this node can run it"
            )],
        }
    }
}

fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(
        |_| "unknown".to_owned(),
        |release| release.trim().to_owned(),
    )
}

fn hooks(places: &Places) -> Result<Vec<HookStatus>> {
    let pins = Pins::new(&places.bpffs)?;
    let hooks = CGROUP_HOOKS.iter().map(|hook| {
        let path = pins.link(hook.name);
        let link = match sys::open_pin(&path) {
            Ok(link) => Some(link),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("open {}", path.display()));
            }
        };
        let info = link
            .as_ref()
            .and_then(|link| sys::link_info(link.as_fd()).ok());
        let cgroup = link
            .as_ref()
            .and_then(|link| sys::link_cgroup(link.as_fd()).ok());
        let pods = (hook.name == CALLBACKS).then(|| OnPods::count(&pins));
        let pods = pods.transpose()?;
        let is_on_all = cgroup.is_some_and(|id| id != 0);
        Ok(HookStatus {
            hook: hook.name,
            attached: is_on_all || pods.as_ref().is_some_and(|pods| pods.without == 0),
            pods: pods.filter(|_| !is_on_all).map(|pods| pods.with),
            of_pods: None,
            program_id: info.map(|info| info.prog_id),
            link_id: info.map(|info| info.id),
            cgroup_id: cgroup,
        })
    });
    hooks.chain([inbound(&pins)]).collect()
}

/// The program for inbound connections, of which each pod's network namespace has an instance.
fn inbound(pins: &Pins) -> Result<HookStatus> {
    let pods = pins.pinned_pods()?;
    let is_attached = |pod: &&u64| {
        let link = sys::open_pin(&pins.pod_link(**pod));
        link.is_ok_and(|link| sys::link_netns(link.as_fd()).is_ok_and(|inode| inode != 0))
    };
    let attached = pods.iter().filter(is_attached).count();
    Ok(HookStatus {
        hook: INBOUND_HOOK,
        attached: attached == pods.len(),
        pods: Some(attached),
        of_pods: Some(pods.len()),
        program_id: None,
        link_id: None,
        cgroup_id: None,
    })
}

/// Pods by whether the connection callbacks are on their own cgroups.
struct OnPods {
    with: usize,
    without: usize,
}

impl OnPods {
    fn count(pins: &Pins) -> Result<Self> {
        let pods = pins.pinned_pods()?;
        let with = pods.iter().filter(|pod| pins.pod_callbacks(**pod).exists());
        let with = with.count();
        let without = pods.len() - with;
        Ok(Self { with, without })
    }
}

fn print(report: &StatusReport, wide: bool) -> Result<()> {
    let state = match report.agent_state {
        AgentState::Ready => "ready",
        AgentState::Starting => "starting",
        AgentState::NotRunning => "not running",
        AgentState::Silent => "does not answer",
        AgentState::NotInstalled => "not installed",
        AgentState::Unknown => "unknown",
    };
    let agent = report.agent.as_ref().map_or_else(
        || state.to_owned(),
        |agent| {
            let uptime = output::seconds(agent.uptime_seconds);
            format!("{}, pid {}, up {uptime}, {state}", agent.version, agent.pid)
        },
    );
    output::print(format!("agent   {agent}"))?;
    output::print(format!("kernel  {}", report.kernel))?;
    if let Some(agent) = &report.agent {
        output::print(format!("cgroup  {}", agent.cgroup))?;
        if agent.repairs > 0 {
            output::print(format!("repairs {}, see the log", agent.repairs))?;
        }
    }
    output::print(format!("pods    {}", pods_line(report)))?;
    if let Some(sidecars) = &report.sidecars {
        output::print(format!("sidecars {sidecars}"))?;
    }
    if !report.hooks.is_empty() {
        output::print("")?;
        print_hooks(&report.hooks, wide)?;
    }
    let events = report.agent.iter().flat_map(|agent| &agent.events);
    let events: Vec<String> = events.map(|event| event.cells().join("  ")).collect();
    for (title, lines) in [
        ("notes", &report.notes),
        ("problems", &report.problems),
        ("last of `sidetrack events`", &events),
    ] {
        if !lines.is_empty() {
            output::print(format!("\n{title}:"))?;
        }
        for line in lines {
            output::print(format!("  {line}"))?;
        }
    }
    Ok(())
}

fn print_hooks(hooks: &[HookStatus], wide: bool) -> Result<()> {
    let cgroup: &[&str] = if wide { &["CGROUP"] } else { &[] };
    let header = [&["HOOK", "ATTACHED", "PROGRAM", "LINK"], cgroup].concat();
    let mut table = output::table(header);
    let number = |id: Option<u64>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
    for hook in hooks {
        let attached = match (hook.attached, hook.pods) {
            (false, Some(pods)) => {
                format!("to {pods} of {} pods", hook.of_pods.unwrap_or_default())
            }
            (true, Some(1)) => "to 1 pod".to_owned(),
            (true, Some(pods)) => format!("to {pods} pods"),
            (true, None) => "yes".to_owned(),
            (false, _) => "no".to_owned(),
        };
        let mut row = vec![
            hook.hook.to_owned(),
            attached,
            number(hook.program_id.map(u64::from)),
            number(hook.link_id.map(u64::from)),
        ];
        if wide {
            row.push(number(hook.cgroup_id));
        }
        table.add_row(row);
    }
    output::print_table(&table)
}

/// Pods by the mesh whose rules they have, where that is known.
fn meshes(pods: &[PodStatus]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for mesh in pods.iter().filter_map(PodStatus::mesh) {
        *counts.entry(mesh.name()).or_default() += 1;
    }
    counts
}

/// How many of each mesh, unless all are of Istio.
fn of_meshes(meshes: &BTreeMap<&'static str, usize>) -> String {
    if meshes.keys().all(|mesh| *mesh == MeshName::Istio.name()) {
        return String::new();
    }
    let meshes = meshes.iter();
    let meshes: Vec<String> = meshes
        .map(|(mesh, count)| format!("{count} of {mesh}"))
        .collect();
    format!("; {}", meshes.join(", "))
}

fn pods_line(report: &StatusReport) -> String {
    match (&report.pods, report.pods_from) {
        _ if report.agent_state == AgentState::NotInstalled => "none".to_owned(),
        (None, _) => "unknown".to_owned(),
        // The kernel knows only those.
        (Some(pods), Source::PinnedMaps) => {
            format!("{} enrolled, read from the pinned maps", pods.enrolled)
        }
        (Some(pods), Source::Agent) => {
            let outdated = match pods.outdated {
                0 => String::new(),
                count => format!("{count} outdated, "),
            };
            format!(
                "{} enrolled, {outdated}{} partial, {} waiting, {} rejected, {} skipped{}",
                pods.enrolled,
                pods.partial,
                pods.waiting,
                pods.rejected,
                pods.skipped,
                of_meshes(&report.meshes)
            )
        }
    }
}
