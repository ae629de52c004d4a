//! The parts, in their order. Each leaves sidetrack installed or not as the next expects it.

mod changes;
mod components;
mod crowd;
mod install;
mod mistakes;
mod nodes;
mod plugin;
mod restarts;
mod sidecar;
mod taint;
mod takeover;
mod tproxy;
mod traffic;
mod uninstall;
mod unmaintained;
mod webhook;

use anyhow::{Result, bail};

use crate::{
    report::{Checks, Report},
    world::World,
};

/// Name, what it is about, and what it does.
type Part = (
    &'static str,
    &'static str,
    fn(&World, &mut Checks<'_>) -> Result<()>,
);

const PARTS: [Part; 16] = [
    (
        "install",
        "by the chart, to the first intercepted request",
        install::run,
    ),
    (
        "traffic",
        "both directions through real Envoys",
        traffic::run,
    ),
    (
        "nodes",
        "their own network namespaces stay out, also while pods start",
        nodes::run,
    ),
    ("sidecar", "what is refused while it is down", sidecar::run),
    (
        "tproxy",
        "a pod in mode TPROXY, with a transparent Envoy",
        tproxy::run,
    ),
    (
        "changes",
        "labels, upgrades and kills under load",
        changes::run,
    ),
    (
        "takeover",
        "running pods with istio-init, under load",
        takeover::run,
    ),
    (
        "mistakes",
        "settings, labels and annotations that are wrong",
        mistakes::run,
    ),
    (
        "taint",
        "no pod comes to a node before its agent is ready",
        taint::run,
    ),
    (
        "restarts",
        "kubelet, containerd and the API server",
        restarts::run,
    ),
    ("webhook", "new pods without istio-init", webhook::run),
    (
        "plugin",
        "the CNI plugin, with and without an agent",
        plugin::run,
    ),
    (
        "unmaintained",
        "an entry of the plugin whose flags were removed",
        unmaintained::run,
    ),
    ("crowd", "many pods at a time", crowd::run),
    (
        "components",
        "each kustomize component by itself",
        components::run,
    ),
    ("uninstall", "in every order", uninstall::run),
];

/// Fails if somebody asks for a part that does not exist.
pub fn check_names(wanted: &[String]) -> Result<()> {
    let names = PARTS.map(|(name, ..)| name);
    for name in wanted {
        if !names.contains(&name.as_str()) {
            bail!("there is no part {name}; there are {}", names.join(", "));
        }
    }
    Ok(())
}

/// Runs the parts that are wanted.
pub fn run(world: &World, report: &mut Report) -> Result<()> {
    world.start_looking()?;
    for (name, what, part) in PARTS {
        let wanted = &world.options.only;
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            report.part(name, what, |checks| part(world, checks))?;
            report.write(world.options.table.as_deref())?;
        }
    }
    Ok(())
}
