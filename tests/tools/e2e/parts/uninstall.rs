//! Uninstalls in random orders, with agents that run, crash or are away, with and without the plugin. After
//! each, pods start, and the nodes are clean, or are cleaned by what the documentation says.

use std::{fmt, time::Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::{install::no_problem, plugin::set_agents};
use crate::{
    helm::{Kustomization, NAMESPACE},
    mesh, node,
    report::Checks,
    world::{BY_ITSELF, SHOP, START, World},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Install {
    Chart,
    Kustomize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agents {
    Run,
    /// They exit as soon as they start.
    Crash,
    /// There are none.
    Away,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `helm uninstall`, `kubectl delete -k`.
    AsInstalled,
    DeleteNamespace,
    DeleteDaemonSet,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    install: Install,
    plugin: bool,
    agents: Agents,
    way: Way,
    /// Right after it.
    reboot: bool,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let install = match self.install {
            Install::Chart => "chart",
            Install::Kustomize => "kustomize",
        };
        let plugin = if self.plugin { " with the plugin" } else { "" };
        let agents = match self.agents {
            Agents::Run => "agents run",
            Agents::Crash => "agents crash-loop",
            Agents::Away => "agents away",
        };
        let way = match (self.way, self.install) {
            (Way::AsInstalled, Install::Chart) => "helm uninstall",
            (Way::AsInstalled, Install::Kustomize) => "kubectl delete -k",
            (Way::DeleteNamespace, _) => "kubectl delete namespace",
            (Way::DeleteDaemonSet, _) => "kubectl delete daemonset",
        };
        let reboot = if self.reboot { ", reboot" } else { "" };
        write!(f, "{install}{plugin}, {agents}, {way}{reboot}")
    }
}

impl Order {
    fn random(random: &mut fastrand::Rng, with_reboots: bool) -> Self {
        let pick = |random: &mut fastrand::Rng, count| random.usize(0..count);
        Self {
            install: [Install::Chart, Install::Kustomize][pick(random, 2)],
            // Where a mistake costs most.
            plugin: pick(random, 4) > 0,
            agents: [Agents::Run, Agents::Crash, Agents::Crash, Agents::Away][pick(random, 4)],
            way: [Way::AsInstalled, Way::DeleteNamespace, Way::DeleteDaemonSet][pick(random, 3)],
            reboot: pick(random, 3) == 0 && with_reboots,
        }
    }
}

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    world.helm.uninstall().ok();
    world.remove_install()?;
    node::wait_clean(&world.kube, BY_ITSELF)?;
    println!("   seed {}", world.options.seed);
    let mut random = fastrand::Rng::with_seed(world.options.seed);
    for number in 1..=world.options.orders {
        let order = Order::random(&mut random, world.options.reboot.is_some());
        let done = try_order(world, &order, number);
        checks.record(&format!("order {number}: {order}"), done);
        world.remove_install()?;
        world.clean_if_needed()?;
    }
    Ok(())
}

/// What was measured.
fn try_order(world: &World, order: &Order, number: usize) -> Result<String> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    let components: &[&str] = if order.plugin { &["cni"] } else { &[] };
    let plain = Kustomization::new("", components, &world.options.image)?;
    install(world, order, &plain)?;
    match order.agents {
        Agents::Run => {}
        Agents::Crash => crash(world)?,
        Agents::Away => set_agents(world, false)?,
    }
    uninstall(world, order, &plain)?;
    if order.reboot {
        world.reboot()?;
        world.wait_nodes()?;
        kube.rollout(node::NAMESPACE, "daemonset/node", START)?;
    }
    // No agent removes the plugin's entry, and nothing proves the uninstall to the plugin: its account is deleted too.
    let is_closed = order.plugin
        && !matches!(order.agents, Agents::Run)
        && !matches!(order.way, Way::DeleteDaemonSet);
    if is_closed {
        world.clean_nodes()?;
    }
    let start = Instant::now();
    let name = format!("after-{number}");
    kube.apply(&[mesh::plain(&name, SHOP, image)])?;
    kube.wait("a new pod runs", START, |kube| {
        let pod = kube.get(&["-n", SHOP, "pod", &name])?;
        ensure!(
            pod["status"]["phase"] == "Running",
            "{}",
            describe(world, &name)?
        );
        Ok(Some(()))
    })?;
    let started = start.elapsed().as_secs_f64();
    world.delete_pod(&name)?;
    let clean = match node::wait_clean(kube, BY_ITSELF) {
        Ok(()) if is_closed => "nodes clean after deploy/kubernetes/cleanup, before it".to_owned(),
        Ok(()) => "nodes clean by themselves".to_owned(),
        Err(_) => {
            world.clean_nodes()?;
            "nodes clean after deploy/kubernetes/cleanup".to_owned()
        }
    };
    Ok(format!("a new pod runs after {started:.0} s, {clean}"))
}

fn install(world: &World, order: &Order, plain: &Kustomization) -> Result<()> {
    let kube = &world.kube;
    match order.install {
        Install::Chart => world.install(&json!({"cni": {"enabled": order.plugin}}))?,
        Install::Kustomize => {
            plain.apply(kube)?;
            world.wait_agents()?;
        }
    }
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, START)?;
    no_problem(world)?;
    if order.plugin {
        world.wait_plugin()?;
    }
    Ok(())
}

fn uninstall(world: &World, order: &Order, plain: &Kustomization) -> Result<()> {
    let kube = &world.kube;
    match (order.way, order.install) {
        (Way::AsInstalled, Install::Chart) => world.helm.uninstall()?,
        (Way::AsInstalled, Install::Kustomize) => plain.delete(kube)?,
        (Way::DeleteNamespace, _) => {
            kube.run(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
        }
        (Way::DeleteDaemonSet, _) => {
            kube.run(&[
                "-n",
                NAMESPACE,
                "delete",
                "daemonset",
                "sidetrack",
                "--wait=false",
            ])?;
        }
    }
    Ok(())
}

/// Why a pod does not start.
fn describe(world: &World, pod: &str) -> Result<String> {
    let events = world.kube.items(&["-n", SHOP, "events"])?;
    let last = events
        .iter()
        .filter(|event| event["involvedObject"]["name"] == *pod)
        .filter_map(|event| event["message"].as_str())
        .next_back();
    Ok(last.unwrap_or("no event").to_owned())
}

/// Makes every agent exit as soon as it starts.
fn crash(world: &World) -> Result<()> {
    let patch = r#"[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--no-such-flag"}]"#;
    world.patch_agents("json", patch)?;
    world.kube.wait("an agent crashes", START, |_| {
        let agents = world.agents()?;
        let restarts = agents
            .iter()
            .map(|pod| &pod["status"]["containerStatuses"][0]["restartCount"]);
        let crashed = restarts.filter(|count| count.as_u64() > Some(0)).count();
        Ok((crashed > 0).then_some(()))
    })
}
