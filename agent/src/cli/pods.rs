//! `sidetrack pods`: one row per pod.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;

use super::{Format, Places, output};
use crate::{
    api::{NetnsStatus, PodState, PodStatus, Refusals},
    client::Client,
    counters::add_live_facts,
    kernel::{maps::Maps, pins::Pins},
    rows::names,
};

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let pods = known(&options.places).await?;
    match options.output {
        Format::Json => output::print_json(&pods)?,
        Format::Table => print(&pods)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The pods that the agent knows; without an agent the enrolled ones, according to the pinned maps.
pub(super) async fn known(places: &Places) -> Result<Vec<PodStatus>> {
    match Client::new(&places.socket).get("/v1/pods").await {
        Ok(pods) => Ok(pods),
        Err(no_agent) => {
            let said = format!("{no_agent:#}");
            let pods = pinned(places).context(said.clone())?;
            eprintln!("sidetrack: {said}; by the pinned maps these pods are intercepted:");
            Ok(pods)
        }
    }
}

/// The enrolled pods according to the pinned maps.
pub(super) fn pinned(places: &Places) -> Result<Vec<PodStatus>> {
    let maps = Maps::open(&Pins::new(&places.bpffs)?)?;
    let mut pods: Vec<PodStatus> = maps
        .pods
        .rows()
        .context("read the pods' rows")?
        .into_iter()
        .map(|(cookie, row)| {
            let (namespace, name, uid) = names(&row);
            PodStatus {
                namespace,
                name,
                uid,
                origin: "pinned map".to_owned(),
                state: PodState::Enrolled,
                reason: None,
                notes: Vec::new(),
                netns: Some(NetnsStatus {
                    path: format!("net:[{}]", row.netns_inode),
                    inode: row.netns_inode,
                    cookie,
                }),
                policy_id: Some(row.policy),
                policy: None,
                ipv6: row.captures(sidetrack_common::addr::Family::V6),
                listener: false,
                outbound_listener: None,
                before_sidecar: false,
                connections: crate::api::Connections::default(),
                refusals: Vec::new(),
            }
        })
        .collect();
    add_live_facts(&mut pods, &maps)?;
    pods.sort_by_key(PodStatus::full_name);
    Ok(pods)
}

fn print(pods: &[PodStatus]) -> Result<()> {
    let mut table = output::table([
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
        "REMARKS",
    ]);
    for pod in pods {
        let enrolled = pod.netns.is_some();
        let only_enrolled = |text: String| if enrolled { text } else { "-".to_owned() };
        let count = |count: u64| only_enrolled(count.to_string());
        let state = serde_json::to_value(pod.state)?;
        let listener = listener(pod);
        let refused = pod.refusals.first().map(last_refusal);
        let remarks: Vec<&str> = pod
            .reason
            .iter()
            .chain(&pod.notes)
            .chain(&refused)
            .map(String::as_str)
            .collect();
        table.add_row([
            pod.full_name(),
            state.as_str().unwrap_or_default().to_owned(),
            pod.netns
                .as_ref()
                .map_or_else(|| "-".to_owned(), |netns| netns.path.clone()),
            pod.policy_id
                .map_or_else(|| "-".to_owned(), |id| id.to_string()),
            only_enrolled(if pod.ipv6 { "v4,v6" } else { "v4" }.to_owned()),
            only_enrolled(listener.to_owned()),
            count(pod.connections.outbound_redirected),
            count(pod.connections.inbound_redirected),
            count(pod.connections.untouched),
            count(pod.connections.refused),
            remarks.join("; "),
        ]);
    }
    output::print_table(&table)
}

/// Whether the sidecar listens: one word if both of its ports are alike.
fn listener(pod: &PodStatus) -> &'static str {
    if pod.before_sidecar {
        return "not yet";
    }
    match (pod.outbound_listener, pod.listener) {
        (Some(true), true) => "up",
        (Some(false), false) => "down",
        (Some(true), false) => "out",
        (Some(false), true) => "in",
        // It is or was on loopback, where inbound connections never go.
        (None, true) => "in, out unknown",
        (None, false) => "unknown",
    }
}

/// Where to look further.
fn last_refusal(refusals: &Refusals) -> String {
    let ago = refusals
        .seconds_ago
        .map_or_else(String::new, |ago| format!(" {} ago", output::seconds(ago)));
    format!(
        "last refused{ago}: {}, see `sidetrack why`",
        refusals.reason
    )
}
