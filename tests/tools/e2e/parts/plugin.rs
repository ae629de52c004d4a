//! The CNI plugin: a pod starts when it is intercepted, and not before.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::{
    mesh, node,
    report::Checks,
    world::{SHOP, SOON, START, World},
};

/// Pods whose first act is a connection.
const FIRST: usize = 5;

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    kube.label(SHOP, Some("enabled"))?;
    world.helm.upgrade(&json!({"cni": {"enabled": true}}))?;
    world.wait_agents()?;
    checks.record(
        "the agents install the plugin, its entry and its credentials",
        world.wait_plugin().map(|()| String::new()),
    );

    let url = world.url(SHOP)?;
    for number in 0..FIRST {
        kube.apply(&[mesh::first(&format!("first-{number}"), SHOP, image, &url)])?;
    }
    checks.record(
        &format!("{FIRST} pods that connect at once: no first connection goes past the sidecars"),
        all_first(world),
    );

    without_agents(world, checks)?;
    let forgotten = match world.helm.upgrade_forgetfully() {
        Ok(()) => bail!("helm upgrade without the values was accepted"),
        Err(error) => format!("{error:#}"),
    };
    checks.record(
        "helm upgrade that forgets the plugin is refused",
        forgotten
            .contains("--reset-then-reuse-values")
            .then(String::new)
            .context(forgotten),
    );
    world
        .helm
        .upgrade(&json!({"cni": {"enabled": false, "remove": true}}))?;
    world.wait_agents()?;
    let removed = kube.wait("the entry is removed", SOON, |kube| {
        let traces = node::traces(kube)?;
        let remaining: Vec<_> = traces
            .iter()
            .filter(|line| line.contains("/etc/cni"))
            .collect();
        ensure!(remaining.is_empty(), "{remaining:?}");
        Ok(Some(String::new()))
    });
    checks.record("cni.remove takes it away", removed);
    world
        .helm
        .upgrade(&json!({"cni": {"enabled": false, "remove": false}}))?;
    world.wait_agents()
}

fn without_agents(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    set_agents(world, false)?;
    kube.apply(&[mesh::bare_without("waits", SHOP, image)])?;
    let stays = stays_pending(world, "waits");
    checks.record(
        "without an agent a pod does not start, and kubectl describe says why",
        stays,
    );
    kube.apply(&[mesh::plain("sidetrack-e2e", "kube-system", image)])?;
    let started = kube.wait("the pod runs", START, |kube| {
        let pod = kube.get(&["-n", "kube-system", "pod", "sidetrack-e2e"])?;
        ensure!(
            pod["status"]["phase"] == "Running",
            "{}",
            pod["status"]["phase"]
        );
        Ok(Some(String::new()))
    });
    checks.record(
        "a pod of an excluded namespace starts without an agent",
        started,
    );
    kube.run(&[
        "-n",
        "kube-system",
        "delete",
        "pod",
        "sidetrack-e2e",
        "--grace-period=1",
    ])?;
    set_agents(world, true)?;
    let ready = kube.wait("the pod runs", START, |kube| {
        let pod = kube.get(&["-n", SHOP, "pod", "waits"])?;
        ensure!(
            pod["status"]["phase"] == "Running",
            "{}",
            pod["status"]["phase"]
        );
        Ok(Some(String::new()))
    });
    checks.record("it starts when there is an agent again", ready);
    kube.run(&["-n", SHOP, "delete", "pod", "waits", "--grace-period=1"])?;
    Ok(())
}

fn all_first(world: &World) -> Result<String> {
    for number in 0..FIRST {
        first_is_intercepted(world, &format!("first-{number}"))?;
    }
    Ok(String::new())
}

/// Waits until a pod of [`mesh::first`] has ended, and deletes it. Its connection must have met both sidecars.
pub fn first_is_intercepted(world: &World, name: &str) -> Result<()> {
    let code = world
        .kube
        .wait(&format!("{name} has connected"), START, |kube| {
            let pod = kube.get(&["-n", SHOP, "pod", name])?;
            let app = pod["status"]["containerStatuses"]
                .as_array()
                .context("statuses")?;
            let app = app
                .iter()
                .find(|it| it["name"] == "app")
                .context("the app")?;
            let ended = &app["state"]["terminated"]["exitCode"];
            ensure!(!ended.is_null(), "{}", app["state"]);
            Ok(Some(ended.clone()))
        })?;
    ensure!(code == 0, "{name}: exit code {code}, 3 is past a sidecar");
    world.delete_pod(name)
}

/// Takes the agents away without uninstalling them, or brings them back.
pub fn set_agents(world: &World, there: bool) -> Result<()> {
    let selector = if there { json!(null) } else { json!("nowhere") };
    let patch =
        json!({"spec": {"template": {"spec": {"nodeSelector": {"sidetrack.dev/e2e": selector}}}}});
    world.patch_agents("merge", &patch.to_string())?;
    if there {
        return world.wait_agents();
    }
    world.kube.wait("the agents are gone", START, |_| {
        let agents = world.agents()?;
        ensure!(agents.is_empty(), "{} agents", agents.len());
        Ok(Some(()))
    })
}

/// The last failure to make a pod's network.
fn failed_sandbox(world: &World, namespace: &str, pod: &str) -> Result<Option<String>> {
    let events = world.kube.items(&["-n", namespace, "events"])?;
    Ok(events
        .iter()
        .filter(|event| {
            event["involvedObject"]["name"] == *pod && event["reason"] == "FailedCreatePodSandBox"
        })
        .filter_map(|event| event["message"].as_str())
        .next_back()
        .map(str::to_owned))
}

fn stays_pending(world: &World, name: &str) -> Result<String> {
    let said = world
        .kube
        .wait("the pod's network is refused", START, |_| {
            failed_sandbox(world, SHOP, name)
        })?;
    ensure!(said.contains("sidetrack"), "{said}");
    thread::sleep(Duration::from_secs(5));
    let pod = world.kube.get(&["-n", SHOP, "pod", name])?;
    ensure!(pod["status"]["phase"] == "Pending", "{}", pod["status"]);
    Ok(String::new())
}
