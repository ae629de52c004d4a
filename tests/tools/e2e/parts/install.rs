//! From nothing to the first intercepted request.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{
    helm::Kustomization,
    load::Window,
    mesh::Init,
    node,
    report::Checks,
    world::{SHOP, START, World},
};

/// From the install to the first intercepted request, with the image on the node.
const TO_FIRST: Duration = Duration::from_secs(60);
/// From the uninstall to clean nodes.
const TO_CLEAN: Duration = Duration::from_secs(30);

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    world.start_mesh(SHOP, Init::None)?;
    world.kube.run(&["get", "namespace", SHOP])?;
    for (how, install) in [("kustomize", true), ("chart", false)] {
        let start = Instant::now();
        let plain = Kustomization::new("", &[], &world.options.image)?;
        if install {
            plain.apply(&world.kube)?;
        } else {
            world.create_namespace()?;
            world.helm.install(&json!({}))?;
        }
        world.kube.label(SHOP, Some("enabled"))?;
        let first = first_intercepted(world).map(|()| start.elapsed());
        checks.record(
            &format!("{how}: install to the first intercepted request in under 60 s"),
            first.and_then(|took| {
                ensure!(took < TO_FIRST, "{took:?}");
                Ok(format!("{:.1} s", took.as_secs_f64()))
            }),
        );
        world.wait_agents()?;
        checks.record(
            &format!("{how}: the agents see no problem"),
            no_problem(world),
        );
        let window = Window::open();
        let start = Instant::now();
        if install {
            plain.delete(&world.kube)?;
        } else {
            world.helm.uninstall()?;
        }
        let clean = node::wait_clean(&world.kube, TO_CLEAN).map(|()| start.elapsed());
        checks.record(
            &format!("{how}: uninstall to clean nodes in under 30 s"),
            clean.map(|took| format!("{:.1} s", took.as_secs_f64())),
        );
        checks.record(
            &format!("{how}: no request fails meanwhile"),
            window.close(&world.kube, SHOP)?.none_failed(),
        );
        world.kube.label(SHOP, None)?;
        world.kube.delete_namespace(crate::helm::NAMESPACE)?;
    }
    let window = Window::open();
    world.install(&json!({}))?;
    checks.record(
        "no pod is intercepted before it is labeled",
        window.close(&world.kube, SHOP)?.all_direct(),
    );
    Ok(())
}

fn first_intercepted(world: &World) -> Result<()> {
    let url = world.url(SHOP)?;
    let script = format!("exec python3 /etc/mesh/app.py first {url}");
    let pod = pod_of(world, "load")?;
    world
        .kube
        .wait("the first intercepted request", START, |kube| {
            // Ends with 3 while a sidecar is missing.
            kube.shell(SHOP, &pod, "app", &script).map(|_| Some(()))
        })
}

/// The name of a workload's one pod.
pub fn pod_of(world: &World, app: &str) -> Result<String> {
    let label = format!("app={app}");
    let words = ["-n", SHOP, "get", "pods", "-l", &label, "-o", "name"];
    let names = world.kube.run(&words)?;
    let name = names.lines().next().unwrap_or_default();
    ensure!(!name.is_empty(), "no pod {app}");
    Ok(name.trim_start_matches("pod/").to_owned())
}

/// No agent reports a problem.
pub fn no_problem(world: &World) -> Result<String> {
    for status in world.ask_agents(&["status"])? {
        ensure!(status["problems"] == json!([]), "{}", status["problems"]);
    }
    Ok(String::new())
}
