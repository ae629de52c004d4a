//! `sidetrack why`: why connections of a pod were refused, and what to do.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
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
            pod.known_reason()
        );
    }
    let why = Why::of(&pod);
    if !output::print_value(options.output, &why)? {
        print(&why)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Why connections of a pod were refused, and would be now.
#[derive(Debug, Serialize)]
struct Why<'a> {
    /// `namespace/name`.
    pod: String,
    /// Connections that were refused since the pod was enrolled.
    refused: u64,
    /// Connections that the application closed before the sidecar had accepted them.
    given_up: u64,
    /// What its sidecar does.
    sidecar: Option<&'a Sidecar>,
    /// What is wrong now.
    now: Vec<Now>,
    /// Refusals by reason.
    refusals: Vec<Reason<'a>>,
}

#[derive(Debug, Serialize)]
struct Now {
    what: String,
    cure: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Reason<'a> {
    #[serde(flatten)]
    refusals: &'a Refusals,
    cause: Option<&'static str>,
    cure: Option<&'static str>,
}

impl<'a> Why<'a> {
    fn of(pod: &'a PodStatus) -> Self {
        let sidecar = pod.sidecar.as_ref();
        let remark = sidecar.and_then(Sidecar::remark).map(|remark| {
            let rule = match sidecar {
                Some(Sidecar::NoDns) => Rule::NoListener,
                _ => Rule::SidecarSilent,
            };
            Now {
                what: remark,
                cure: Some(cure(rule)),
            }
        });
        let ports = [
            ("outbound", pod.outbound_listener),
            ("inbound", pod.listener),
        ];
        let silent = ports.into_iter().filter_map(|(direction, listens)| {
            let text = match listens {
                Some(true) => return None,
                Some(false) => "does not listen on its",
                None => "is not known to listen on its",
            };
            Some(Now {
                what: format!("its sidecar {text} {direction} port"),
                cure: None,
            })
        });
        let reasons = pod.refusals.iter().map(|refusals| {
            let rule = Rule::from_name(&refusals.reason);
            Reason {
                refusals,
                cause: rule.map(Rule::describe),
                cure: rule.map(cure),
            }
        });
        Self {
            pod: pod.full_name(),
            refused: pod.connections.refused,
            given_up: pod.connections.given_up,
            sidecar,
            now: remark.into_iter().chain(silent).collect(),
            refusals: reasons.collect(),
        }
    }
}

fn print(why: &Why<'_>) -> Result<()> {
    let name = &why.pod;
    output::print(match why.refused {
        0 => format!("pod {name}: no connection was refused since it was enrolled"),
        refused => format!("pod {name}: {} refused", counted(refused, "connection")),
    })?;
    if why.given_up > 0 {
        output::print(format!(
            "{} given up: closed by the application before the sidecar had accepted",
            counted(why.given_up, "connection")
        ))?;
    }
    for now in &why.now {
        output::print(format!("Now {}.", now.what))?;
        print_field("cure", now.cure)?;
    }
    for reason in &why.refusals {
        output::print("")?;
        output::print(summary(reason.refusals))?;
        let last = reason.refusals.last.as_ref().map(what);
        print_field("last", last.as_deref())?;
        print_field("cause", reason.cause)?;
        print_field("cure", reason.cure)?;
    }
    Ok(())
}

fn print_field(name: &str, text: Option<&str>) -> Result<()> {
    text.map_or(Ok(()), |text| output::print(format!("  {name:<6} {text}")))
}

fn summary(refusals: &Refusals) -> String {
    let ago = refusals.seconds_ago.map(output::seconds);
    let when = match (refusals.count, ago) {
        (1, Some(ago)) => format!("once, {ago} ago"),
        (1, None) => "once".to_owned(),
        (count, Some(ago)) => format!("{count} times, the last {ago} ago"),
        (count, None) => format!("{count} times"),
    };
    format!("{}: {when}", refusals.reason)
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
            let uid = output::or_dash(process.uid);
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
