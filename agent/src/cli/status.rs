//! `sidetrack status`: kernel, hooks, pods and problems.

mod hooks;
mod report;

use std::{
    fs, io,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use sidetrack_base::duration::{self, duration};
use sidetrack_base::runtime::exit_code;
use sidetrack_datapath::kernel::{pins::Pins, release};
use sidetrack_live::SidecarCounts;

use self::{
    hooks::hooks,
    report::{AgentState, PodCounts, Source, StatusReport, meshes, print},
};
use super::{
    BPFFS, Format, Places, output,
    pod_name::{NamespaceFlag, PodName},
    pods,
};
use crate::observe::pinned_pods;
use crate::{
    api::{AgentStatus, PodState, PodStatus},
    client::Client,
};

/// Pause between looks while waiting for a pod.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack status
  sidetrack status --wait shop/web-0 --timeout 30s
  sidetrack status --check -o json")]
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
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
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
    Ok(exit_code(fine))
}

/// Asks at least once, whatever the time.
async fn wait(pod: &PodName, options: &Options) -> Result<()> {
    let client = Client::new(&options.places.socket);
    let begun = Instant::now();
    loop {
        let answer = client.get::<Vec<PodStatus>>("/v1/pods").await;
        let last = match answer {
            Ok(pods) => match pods::named(pods, pod) {
                // One by the maps alone may be an earlier pod of that name.
                Ok(found) if found.origin == pinned_pods::ORIGIN => {
                    "the agent does not know its pods yet".to_owned()
                }
                Ok(found) if found.state == PodState::Enrolled => return Ok(()),
                Ok(found) => found.reason.unwrap_or_default(),
                Err(error) => format!("the agent does not know the pod: {error:#}"),
            },
            Err(error) => format!("{error:#}"),
        };
        let remaining = options.timeout.saturating_sub(begun.elapsed());
        if remaining.is_zero() {
            let waited = duration::text(options.timeout);
            bail!("pod {pod} is not enrolled after {waited}: {last}");
        }
        tokio::time::sleep(remaining.min(POLL)).await;
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
        Some(_) => (Source::Agent, pods::answered(places).await),
        None => (Source::PinnedMaps, pods::pinned(places)),
    };
    let pods: Option<Vec<PodStatus>> = pods
        .map_err(|error| problems.push(format!("{error:#}")))
        .ok();
    let counts = pods.as_ref().map(|pods| PodCounts::of(pods));
    let meshes = meshes(pods.as_deref().unwrap_or_default());
    let sidecars = pods.as_ref().map(|pods| {
        let staying = pods.iter().filter(|pod| !pod.terminating);
        let enrolled = staying.filter_map(|pod| pod.sidecar.as_ref());
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
            // As in a container that has the socket only. The agent itself reports hooks that it cannot repair.
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
        kernel: release::text_or_unknown(),
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

/// Whether no agent has pins here.
fn has_no_pins(places: &Places) -> bool {
    match Pins::new(&places.bpffs) {
        // An uninstall leaves the directory where it is a mount point.
        Ok(pins) => match fs::read_dir(pins.root()) {
            Ok(mut pins) => pins.next().is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        },
        // Of another path it is unknown whether it is the right one.
        Err(_) => places.bpffs == Path::new(BPFFS),
    }
}
