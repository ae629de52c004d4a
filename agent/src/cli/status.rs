//! `sidetrack status`: kernel, hooks, pods and problems.

use std::{
    fs,
    os::fd::AsFd,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use super::{Format, Places, duration::duration, output, pods};
use crate::{
    api::{AgentStatus, PodState, PodStatus},
    client::Client,
    kernel::{
        hooks::{CALLBACKS, CGROUP_HOOKS},
        pins::Pins,
        sys,
    },
};
use sidetrack_policy::PodRef;

/// Pause between looks while waiting for a pod.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Wait until this pod is enrolled
    #[arg(long, value_name = "NAMESPACE/POD")]
    wait: Option<PodRef>,
    /// How long to wait, such as 10s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, requires = "wait")]
    timeout: Duration,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Everything the command shows.
#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    agent: Option<AgentStatus>,
    hooks: Vec<HookStatus>,
    pods: PodCounts,
    notes: Vec<String>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct HookStatus {
    hook: &'static str,
    attached: bool,
    /// Of the connection callbacks, while they are on the pods' own cgroups only: on how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<usize>,
    program_id: Option<u32>,
    link_id: Option<u32>,
    cgroup_id: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
struct PodCounts {
    enrolled: usize,
    partial: usize,
    waiting: usize,
    rejected: usize,
    not_taken: usize,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    if let Some(pod) = &options.wait {
        wait(pod, &options).await?;
    }
    let report = report(&options.places).await;
    match options.output {
        Format::Json => output::print_json(&report)?,
        Format::Table => print(&report)?,
    }
    Ok(if report.agent.is_some() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn wait(pod: &PodRef, options: &Options) -> Result<()> {
    let client = Client::new(&options.places.socket);
    let deadline = Instant::now() + options.timeout;
    loop {
        let answer = client.get::<Vec<PodStatus>>("/v1/pods").await;
        let last = match answer {
            Ok(pods) => match pods
                .iter()
                .find(|known| known.full_name() == pod.to_string())
            {
                Some(found) if found.state == PodState::Enrolled => return Ok(()),
                Some(found) => found.reason.clone().unwrap_or_default(),
                None => "the agent does not know the pod".to_owned(),
            },
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() >= deadline {
            bail!(
                "pod {pod} is not enrolled after {:?}: {last}",
                options.timeout
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn report(places: &Places) -> Report {
    let mut problems = Vec::new();
    let client = Client::new(&places.socket);
    let agent: Option<AgentStatus> = match client.get("/v1/status").await {
        Ok(agent) => Some(agent),
        Err(error) => {
            problems.push(format!("{error:#}"));
            None
        }
    };
    problems.extend(agent.iter().flat_map(|agent| agent.problems.clone()));
    let pods: Vec<PodStatus> = match &agent {
        Some(_) => client.get("/v1/pods").await.unwrap_or_default(),
        None => pods::pinned(places).unwrap_or_default(),
    };
    let mut counts = PodCounts::default();
    for pod in &pods {
        match pod.state {
            PodState::Enrolled => counts.enrolled += 1,
            PodState::Partial => counts.partial += 1,
            PodState::Waiting => counts.waiting += 1,
            PodState::Rejected => counts.rejected += 1,
            PodState::NotTaken => counts.not_taken += 1,
        }
        if let Some(reason) = pod
            .reason
            .as_ref()
            // The agent's problems name those that are partial.
            .filter(|_| !matches!(pod.state, PodState::NotTaken | PodState::Partial))
        {
            problems.push(format!("pod {}: {reason}", pod.full_name()));
        }
    }
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
    let notes = of_node.chain(of_pods).chain(not_seen).collect();
    let hooks = hooks(places);
    if let Err(error) = &hooks {
        problems.push(format!("{error:#}"));
    }
    let hooks = hooks.unwrap_or_default();
    problems.extend(
        hooks
            .iter()
            .filter(|hook| !hook.attached && agent.is_some())
            .map(|hook| format!("hook {} is not attached: restart the agent", hook.hook)),
    );
    Report {
        kernel: kernel(),
        agent,
        hooks,
        pods: counts,
        notes,
        problems,
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
    CGROUP_HOOKS
        .iter()
        .map(|hook| {
            let link = sys::open_pin(&pins.link(hook.name)).ok();
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
                program_id: info.map(|info| info.prog_id),
                link_id: info.map(|info| info.id),
                cgroup_id: cgroup,
            })
        })
        .collect()
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

fn print(report: &Report) -> Result<()> {
    let agent = report.agent.as_ref().map_or_else(
        || "not running".to_owned(),
        |agent| {
            format!(
                "{}, pid {}, up {}, {}",
                agent.version,
                agent.pid,
                uptime(agent.uptime_seconds),
                if agent.ready { "ready" } else { "starting" }
            )
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
    output::print(format!(
        "pods    {} enrolled, {} partial, {} waiting, {} rejected, {} not taken\n",
        report.pods.enrolled,
        report.pods.partial,
        report.pods.waiting,
        report.pods.rejected,
        report.pods.not_taken
    ))?;
    let mut table = output::table(["HOOK", "ATTACHED", "PROGRAM", "LINK"]);
    let number = |id: Option<u32>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
    for hook in &report.hooks {
        table.add_row([
            hook.hook.to_owned(),
            match (hook.attached, hook.pods) {
                (true, Some(1)) => "to 1 pod".to_owned(),
                (true, Some(pods)) => format!("to {pods} pods"),
                (true, None) => "yes".to_owned(),
                (false, _) => "no".to_owned(),
            },
            number(hook.program_id),
            number(hook.link_id),
        ]);
    }
    if !report.hooks.is_empty() {
        output::print_table(&table)?;
    }
    for (title, lines) in [("notes", &report.notes), ("problems", &report.problems)] {
        if !lines.is_empty() {
            output::print(format!("\n{title}:"))?;
        }
        for line in lines {
            output::print(format!("  {line}"))?;
        }
    }
    Ok(())
}

fn uptime(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}
