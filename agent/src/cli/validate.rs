//! `sidetrack validate`: checks interception from inside a pod.

mod check;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args;
use nix::unistd::Uid;
use serde::Serialize;

use sidetrack_base::duration::duration_within;

use self::check::{Failure, Probe, Trial};
use super::{Format, output};

/// The exit code of istio-validation, so that tools which repair pods by that code work here too.
const NOT_INTERCEPTED: u8 = 126;
/// The sidecar's user in most meshes.
const PROXY: u32 = 1337;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack validate --timeout 30s")]
pub(super) struct Options {
    /// The sidecar's port for outbound connections
    #[arg(long, value_name = "PORT", default_value = "15001", value_parser = clap::value_parser!(u16).range(1..))]
    outbound_port: u16,
    /// The sidecar's port for inbound connections
    #[arg(long, value_name = "PORT", default_value = "15006", value_parser = clap::value_parser!(u16).range(1..))]
    inbound_port: u16,
    /// Check with an external address instead of the pod's own (needed for Linkerd). Run as another user than the
    /// proxy's
    #[arg(long)]
    outside: bool,
    /// How long to try, 1s to 3600s
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = timeout)]
    timeout: Duration,
    /// Whether IPv6 must be intercepted; auto: if the pod's first address is an IPv6 one
    #[arg(long, value_name = "auto|yes|no", value_enum, default_value = "auto")]
    ipv6: Ipv6,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Ipv6 {
    Auto,
    Yes,
    No,
}

#[derive(Debug, Serialize)]
struct Verdict {
    intercepted: bool,
    found: Vec<String>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    duration_within(text, 1..=3600)
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let ipv6 = match options.ipv6 {
        Ipv6::Auto => check::has_ipv6(),
        Ipv6::Yes => true,
        Ipv6::No => false,
    };
    let trial = Trial {
        outbound_port: options.outbound_port,
        inbound_port: options.inbound_port,
        patience: options.timeout,
        ipv6,
        probe: match options.outside {
            true => Probe::Outside,
            false => Probe::OwnPod,
        },
    };
    let (verdict, code) = match check::run(trial).await {
        Ok(found) => {
            let intercepted = true;
            (Verdict { intercepted, found }, ExitCode::SUCCESS)
        }
        Err(failure @ Failure::Listen(..)) => return Err(failure.into()),
        Err(failure) => {
            let verdict = Verdict {
                intercepted: false,
                found: vec![failure.to_string()],
            };
            (verdict, ExitCode::from(NOT_INTERCEPTED))
        }
    };
    if !output::print_value(options.output, &verdict)? {
        print(&verdict, trial.probe)?;
    }
    Ok(code)
}

fn print(verdict: &Verdict, probe: Probe) -> Result<()> {
    if verdict.intercepted {
        for line in &verdict.found {
            output::print(line)?;
        }
        return output::print("this pod is intercepted");
    }
    for line in &verdict.found {
        output::remark(line);
    }
    output::remark(
        "this pod is not intercepted. Is it, or its namespace, labeled sidetrack.dev/interception=enabled, and does the agent on its node know it (`sidetrack pods`)?",
    );
    let uid = Uid::effective();
    if probe == Probe::OwnPod && uid.as_raw() != PROXY {
        output::remark(format!(
            "this runs as user {uid}: run it as the sidecar's user, usually {PROXY}"
        ));
    }
    Ok(())
}
