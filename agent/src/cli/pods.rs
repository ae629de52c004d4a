//! `sidetrack pods`: one row per pod.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;

use super::{
    Format, Places,
    output::{self, or_dash},
    pod_name::{NamespaceFlag, PodName},
};
use crate::observe::{counters::add_live_facts, pinned_pods};
use crate::{
    api::{PodStatus, Refusals, Sidecar},
    client::Client,
};
use sidetrack_datapath::kernel::{maps::Maps, pins::Pins};
use sidetrack_live::refusals::LastRefusal;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack pods
  sidetrack pods shop/web-0
  sidetrack pods -n shop -o wide
  sidetrack pods -o yaml")]
pub(super) struct Options {
    /// Only this pod
    #[arg(value_name = "NAMESPACE/POD")]
    pod: Option<PodName>,
    #[command(flatten)]
    namespace: NamespaceFlag,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let mut pods = known(&options.places).await?;
    if let Some(name) = &options.pod {
        pods = vec![named(pods, &options.namespace.complete(name))?];
    }
    pods.retain(|pod| options.namespace.has(&pod.namespace));
    if !output::print_value(options.output, &pods)? {
        if pods.is_empty() {
            output::remark("no such pods are known");
        }
        print(&pods, options.output == Format::Wide)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The pods that the agent has; without an agent the enrolled ones, according to the pinned maps.
pub(super) async fn known(places: &Places) -> Result<Vec<PodStatus>> {
    match answered(places).await {
        Ok(pods) => Ok(pods),
        Err(no_agent) => {
            let said = format!("{no_agent:#}");
            let pods = pinned(places)
                .with_context(|| format!("{said}; the pinned maps cannot be read"))?;
            output::remark(format!(
                "{said}; by the pinned maps these pods are intercepted:"
            ));
            Ok(pods)
        }
    }
}

/// The pods that the agent has, as far as they may be shown.
pub(super) async fn answered(places: &Places) -> Result<Vec<PodStatus>> {
    let client = Client::new(&places.socket);
    let mut pods: Vec<PodStatus> = client.get("/v1/pods").await?;
    pods.retain(|pod| places.shows(&pod.namespace));
    Ok(pods)
}

/// Of the known pods the one that has this name.
pub(super) fn named(pods: Vec<PodStatus>, name: &PodName) -> Result<PodStatus> {
    let names: Vec<String> = pods.iter().map(PodStatus::full_name).collect();
    let found = name.find(&names)?;
    let pod = pods.into_iter().find(|pod| pod.full_name() == *found);
    pod.context("the pod that was just found")
}

/// The enrolled pods according to the pinned maps, as far as they may be shown.
pub(super) fn pinned(places: &Places) -> Result<Vec<PodStatus>> {
    let maps = Maps::open(&Pins::new(&places.bpffs)?)?;
    let mut pods = pinned_pods::all(&maps).context("read the pods' rows")?;
    pods.retain(|pod| places.shows(&pod.namespace));
    // Without an agent it is unknown whether sidecars accept connections.
    add_live_facts(&mut pods, &maps, None)?;
    pods.sort_by_key(PodStatus::full_name);
    Ok(pods)
}

const COLUMNS: [&str; 10] = [
    "POD",
    "STATE",
    "NETNS",
    "POLICY",
    "FAMILIES",
    "LISTENER",
    "OUT",
    "IN",
    "UNTOUCHED",
    "REFUSED",
];
/// What `-o wide` adds, before the remarks.
const WIDE: [&str; 9] = [
    "MESH",
    "WAITING",
    "GIVEN-UP",
    "UDP",
    "BEFORE-SIDECAR",
    "UID",
    "COOKIE",
    "NETNS-PATH",
    "ORIGIN",
];
const REMARKS: &str = "REMARKS";

fn print(pods: &[PodStatus], wide: bool) -> Result<()> {
    let more: &[&str] = if wide { &WIDE } else { &[] };
    let header = [&COLUMNS[..], more, &[REMARKS]].concat();
    let mut table = output::table(header);
    for pod in pods {
        let mut row = row(pod);
        if wide {
            row.extend(wide_row(pod));
        }
        let refused = pod.refusals.iter().find_map(|it| last_refusal(pod, it));
        let hangs = pod.sidecar.as_ref().and_then(Sidecar::remark);
        let remarks: Vec<&str> = pod
            .reason
            .iter()
            .chain(&hangs)
            .chain(&pod.notes)
            .chain(&refused)
            .map(String::as_str)
            .collect();
        row.push(remarks.join("; "));
        table.add_row(row);
    }
    output::print_table(&table)
}

fn row(pod: &PodStatus) -> Vec<String> {
    let netns = pod.netns.as_ref();
    let enrolled = |text: String| or_dash(netns.map(|_| text));
    let count = |count: u64| enrolled(count.to_string());
    vec![
        pod.full_name(),
        pod.state.name().to_owned(),
        or_dash(netns.map(|netns| netns.inode)),
        or_dash(pod.policy_id),
        enrolled(if pod.ipv6 { "v4,v6" } else { "v4" }.to_owned()),
        or_dash(pod.sidecar.as_ref()),
        count(pod.connections.outbound_redirected),
        count(pod.connections.inbound_redirected),
        count(pod.connections.untouched),
        count(pod.connections.refused),
    ]
}

fn wide_row(pod: &PodStatus) -> [String; WIDE.len()] {
    let netns = pod.netns.as_ref();
    let count = |count: u64| or_dash(netns.map(|_| count));
    [
        or_dash(pod.mesh()),
        count(pod.sidecar.as_ref().map_or(0, Sidecar::waiting)),
        count(pod.connections.given_up),
        count(pod.connections.udp),
        count(pod.connections.before_sidecar),
        or_dash(pod.uid.as_ref()),
        or_dash(netns.map(|netns| netns.cookie)),
        or_dash(netns.map(|netns| &netns.path)),
        pod.origin.clone(),
    ]
}

/// Where to look further.
fn last_refusal(pod: &PodStatus, refusals: &Refusals) -> Option<String> {
    let last = LastRefusal {
        reason: refusals.reason.clone(),
        seconds_ago: refusals.seconds_ago,
    };
    let unknown = Sidecar::Unknown;
    last.remark(pod.sidecar.as_ref().unwrap_or(&unknown), "sidetrack why")
}
