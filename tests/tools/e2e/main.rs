//! The whole story on a real cluster: install, opt in, traffic through real Envoys, migration from istio-init
//! under load, changes, restarts, the CNI plugin, the webhook, and every way to uninstall.
//!
//! It drives the cluster as people do: with kubectl, and Helm's own engine. Everything it makes is in
//! namespaces of its own and sidetrack's, and is removed at the end.

mod certificates;
mod helm;
mod kubectl;
mod load;
mod mesh;
mod node;
mod parts;
mod report;
mod world;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Parser;

use crate::{report::Report, world::World};

/// Tries everything that is promised on a real cluster. The cluster must be one for tests: sidetrack is
/// installed and uninstalled on it, and its components are restarted.
#[derive(Debug, Parser)]
#[command(name = "sidetrack-e2e")]
pub struct Options {
    /// The cluster, as its administrator.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: PathBuf,
    /// sidetrack's image, present on the nodes or to be pulled.
    #[arg(long, value_name = "REF")]
    image: String,
    /// Image of the pods: sh, pkill, nsenter, Python 3 as python3, Envoy as envoy, iptables-restore.
    #[arg(long, value_name = "REF", default_value = "localhost/mesh:1")]
    mesh_image: String,
    /// kubectl, of about the cluster's version.
    #[arg(long, value_name = "PATH", default_value = "kubectl")]
    kubectl: PathBuf,
    /// Python environment with Helm's engine.
    #[arg(long, value_name = "DIR", hide = true)]
    tools: PathBuf,
    /// Command that restarts a component of the node: {} becomes kubelet, containerd or kube-apiserver.
    /// Without it these checks are skipped.
    #[arg(long, value_name = "COMMAND")]
    restart: Option<String>,
    /// Command that stops a component, for outages: {} as for --restart. The restart starts it again.
    #[arg(long, value_name = "COMMAND", requires = "restart")]
    stop: Option<String>,
    /// Command that reboots the node. Without it no order of uninstalling has a reboot.
    #[arg(long, value_name = "COMMAND")]
    reboot: Option<String>,
    /// Others use sidetrack on the same kernel, as clusters of kind do: do not look for programs without a pin.
    #[arg(long)]
    shared_kernel: bool,
    /// How long pods with istio-init are adopted and released, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 260)]
    takeover: u64,
    /// Pods that are enrolled at a time.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pods: usize,
    /// Random orders of uninstalling.
    #[arg(long, value_name = "N", default_value_t = 10)]
    orders: usize,
    /// The randomness of the orders.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Write the table for docs/appendix/e2e.md to this file, after each part.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Leave everything as it is after a failure, to look at it.
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<ExitCode> {
    parts::check_names(&options.only)?;
    let table = options.table.clone();
    let keep = options.keep;
    let mut report = Report::default();
    let world = World::new(options)?;
    world.remove_everything()?;
    let outcome = parts::run(&world, &mut report);
    if let Err(error) = &outcome {
        report.part("run", "", |checks| {
            checks.record(
                "every part ran to its end",
                Err(anyhow::anyhow!("{error:#}")),
            );
            Ok(())
        })?;
    }
    if !keep || report.is_green() {
        world.remove_everything()?;
    }
    report.write(table.as_deref())?;
    Ok(report.close())
}
