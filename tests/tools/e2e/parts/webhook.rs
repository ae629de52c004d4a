//! New pods come without istio-init.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    helm::NAMESPACE,
    mesh,
    report::Checks,
    world::{SHOP, SOON, START, World},
};

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    kube.label(SHOP, Some("enabled"))?;
    world.helm.upgrade(&json!({"webhook": {"enabled": true}}))?;
    kube.rollout(NAMESPACE, "deployment/sidetrack-webhook", START)?;
    world.wait_agents()?;
    let pod = mesh::bare_with_init("bare", SHOP, image);
    checks.record(
        "istio-init is replaced by sidetrack-validation",
        is_replaced(world, &pod).map(|()| String::new()),
    );
    checks.record(
        "the pod starts, and is intercepted",
        is_ready(world, "bare").map(|()| String::new()),
    );
    checks.record(
        "the same manifest applied again is no error",
        kube.apply(std::slice::from_ref(&pod))
            .map(|()| String::new()),
    );
    kube.label(SHOP, Some("disabled"))?;
    let other = mesh::bare_with_init("opted-out", SHOP, image);
    kube.apply(&[other])?;
    let names = init_names(&kube.get(&["-n", SHOP, "pod", "opted-out"])?);
    checks.record(
        "pods of a namespace that is opted out keep istio-init",
        (names == ["istio-init"])
            .then(String::new)
            .with_context(|| format!("{names:?}")),
    );
    kube.run(&[
        "-n",
        SHOP,
        "delete",
        "pods",
        "bare",
        "opted-out",
        "--grace-period=1",
    ])?;
    kube.label(SHOP, Some("enabled"))?;
    world
        .helm
        .upgrade(&json!({"webhook": {"enabled": false}}))?;
    world.wait_enrolled(SHOP, 2, SOON)
}

/// Creates a pod of [`SHOP`] until the webhook changes it: the Service's rules take a moment to reach the node.
pub fn is_replaced(world: &World, pod: &Value) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    world.kube.wait("the webhook changes a pod", START, |kube| {
        kube.run(&[
            "-n",
            SHOP,
            "delete",
            "pod",
            name,
            "--ignore-not-found",
            "--grace-period=1",
        ])?;
        kube.apply(std::slice::from_ref(pod))?;
        let names = init_names(&kube.get(&["-n", SHOP, "pod", name])?);
        ensure!(names == ["sidetrack-validation"], "{names:?}");
        Ok(Some(()))
    })
}

/// Waits until a pod of [`SHOP`] is ready.
pub fn is_ready(world: &World, name: &str) -> Result<()> {
    world.kube.wait("the pod is ready", START, |kube| {
        let pod = kube.get(&["-n", SHOP, "pod", name])?;
        let conditions = pod["status"]["conditions"]
            .as_array()
            .context("conditions")?;
        let ready = conditions
            .iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True");
        ensure!(ready, "{}", pod["status"]["initContainerStatuses"]);
        Ok(Some(()))
    })
}

fn init_names(pod: &Value) -> Vec<String> {
    let all = pod["spec"]["initContainers"]
        .as_array()
        .into_iter()
        .flatten();
    all.filter_map(|init| init["name"].as_str().map(str::to_owned))
        .collect()
}
