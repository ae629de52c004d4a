//! `sidetrack why`: why connections of a pod were refused, and what to do.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use sidetrack_common::rule::Rule;
use sidetrack_policy::text::counted;

use super::{
    Format, Places, output,
    pod_name::{NamespaceFlag, PodName},
    pods,
};
use crate::api::{PodStatus, Refusals, Sidecar, TraceEvent};
use crate::observe::refusals::cure;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack why shop/web-0     why were connections of this pod refused?
  sidetrack trace --refused    the same as it happens, for all pods of the node")]
pub(super) struct Options {
    /// The pod
    #[arg(value_name = "NAMESPACE/POD")]
    pod: PodName,
    #[command(flatten)]
    namespace: NamespaceFlag,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let pods = pods::known(&options.places).await?;
    let pod = pods::named(pods, &options.namespace.complete(&options.pod))?;
    let name = pod.full_name();
    if pod.netns.is_none() {
        bail!(
            "pod {name} is not enrolled, so sidetrack refuses none of its connections: {}",
            pod.reason.as_deref().unwrap_or("no reason is known")
        );
    }
    if !output::print_value(options.output, &pod.refusals)? {
        print(&pod)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(pod: &PodStatus) -> Result<()> {
    let name = pod.full_name();
    let refused = pod.connections.refused;
    if refused == 0 {
        output::print(format!(
            "pod {name}: no connection was refused since it was enrolled"
        ))?;
    } else {
        let refused = counted(refused, "connection");
        output::print(format!("pod {name}: {refused} refused"))?;
    }
    if pod.connections.given_up > 0 {
        output::print(format!(
            "{} given up: closed by the application before the sidecar had accepted",
            counted(pod.connections.given_up, "connection")
        ))?;
    }
    if let Some(remark) = pod.sidecar.as_ref().and_then(Sidecar::remark) {
        output::print(format!("Now {remark}."))?;
        let rule = match pod.sidecar {
            Some(Sidecar::NoDns) => Rule::NoListener,
            _ => Rule::SidecarSilent,
        };
        output::print(format!("  cure   {}", cure(rule)))?;
    }
    for (direction, listens) in [
        ("outbound", pod.outbound_listener),
        ("inbound", pod.listener),
    ] {
        let text = match listens {
            Some(true) => continue,
            Some(false) => "does not listen on its",
            None => "is not known to listen on its",
        };
        output::print(format!("Now its sidecar {text} {direction} port."))?;
    }
    for refusals in &pod.refusals {
        output::print("")?;
        reason(refusals)?;
    }
    Ok(())
}

fn reason(refusals: &Refusals) -> Result<()> {
    let ago = refusals.seconds_ago.map(output::seconds);
    let when = match (refusals.count, ago) {
        (1, Some(ago)) => format!("once, {ago} ago"),
        (1, None) => "once".to_owned(),
        (count, Some(ago)) => format!("{count} times, the last {ago} ago"),
        (count, None) => format!("{count} times"),
    };
    output::print(format!("{}: {when}", refusals.reason))?;
    if let Some(last) = &refusals.last {
        output::print(format!("  last   {}", what(last)))?;
    }
    if let Some(rule) = Rule::from_name(&refusals.reason) {
        output::print(format!("  cause  {}", rule.describe()))?;
        output::print(format!("  cure   {}", cure(rule)))?;
    }
    Ok(())
}

/// The last refusal as a sentence.
fn what(last: &TraceEvent) -> String {
    let error = last.errno.map_or_else(String::new, |errno| {
        format!(": {}", sidetrack_live::errno_text(errno))
    });
    let source = last.source.as_deref();
    let who = last.process.as_ref().map_or_else(
        || source.unwrap_or("a client").to_owned(),
        |process| {
            let uid = process
                .uid
                .map_or_else(|| "-".to_owned(), |uid| uid.to_string());
            format!("{}[{}], uid {uid}", process.name, process.pid)
        },
    );
    let redirected = last
        .port
        .map_or_else(String::new, |port| format!(", redirected to {port}"));
    format!(
        "{} {who} to {}{redirected}{error}",
        last.time, last.destination
    )
}
