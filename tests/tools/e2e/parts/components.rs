//! The kustomize components, each by itself: applied with `kubectl apply -k`, seen to work, and deleted again.

use anyhow::{Context as _, Result, ensure};

use super::{
    install::no_problem,
    plugin::first_is_intercepted,
    taint,
    webhook::{is_ready, is_replaced},
};
use crate::{
    certificates,
    helm::{Kustomization, NAMESPACE},
    mesh, node,
    report::Checks,
    world::{BY_ITSELF, SHOP, SOON, START, World},
};

/// A component: its name, what it is seen to do, what it needs first, and the look at it.
struct Component {
    name: &'static str,
    claim: &'static str,
    /// `None`: no label on the namespace.
    label: Option<&'static str>,
    before: fn(&World) -> Result<()>,
    works: fn(&World) -> Result<String>,
}

const COMPONENTS: [Component; 4] = [
    Component {
        name: "cni",
        claim: "the plugin is installed, and a pod is intercepted from its first connection",
        label: Some("enabled"),
        before: nothing,
        works: cni,
    },
    Component {
        name: "enroll-all",
        claim: "pods of a namespace without a label are enrolled, and not if it opts out",
        label: None,
        before: nothing,
        works: enroll_all,
    },
    Component {
        name: "taint",
        claim: "the taint goes when the agents are ready",
        label: None,
        before: taint::add,
        works: taint,
    },
    Component {
        name: "webhook",
        claim: "a new pod's istio-init is replaced, and the pod is ready",
        label: Some("enabled"),
        before: certificate,
        works: webhook,
    },
];

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    world.remove_install()?;
    world.clean_if_needed()?;
    for component in &COMPONENTS {
        let claim = format!("{}: {}", component.name, component.claim);
        checks.record(&claim, try_component(world, component));
        checks.record(
            &format!("{}: kubectl delete -k leaves clean nodes", component.name),
            delete(world, component),
        );
        world.remove_taint();
        world.remove_install()?;
        world.clean_if_needed()?;
    }
    world.kube.label(SHOP, Some("enabled"))
}

fn try_component(world: &World, component: &Component) -> Result<String> {
    world.kube.label(SHOP, component.label)?;
    (component.before)(world)?;
    applied(world, component)?.apply(&world.kube)?;
    let seen = (component.works)(world)?;
    world.wait_agents()?;
    no_problem(world)?;
    Ok(seen)
}

fn applied(world: &World, component: &Component) -> Result<Kustomization> {
    Kustomization::new("", &[component.name], &world.options.image)
}

fn delete(world: &World, component: &Component) -> Result<String> {
    applied(world, component)?.delete(&world.kube)?;
    node::wait_clean(&world.kube, BY_ITSELF)?;
    let remaining = world.kube.run(&[
        "get",
        "clusterrole,clusterrolebinding,mutatingwebhookconfiguration",
        "-o",
        "name",
    ])?;
    ensure!(!remaining.contains("sidetrack"), "{remaining}");
    Ok(String::new())
}

fn nothing(_: &World) -> Result<()> {
    Ok(())
}

fn cni(world: &World) -> Result<String> {
    world.wait_agents()?;
    world.wait_plugin()?;
    let url = world.url(SHOP)?;
    let pod = mesh::first("component", SHOP, &world.options.mesh_image, &url);
    world.kube.apply(&[pod])?;
    first_is_intercepted(world, "component").map(|()| String::new())
}

fn enroll_all(world: &World) -> Result<String> {
    world.wait_agents()?;
    world.wait_enrolled(SHOP, 2, START)?;
    world.kube.label(SHOP, Some("disabled"))?;
    world.wait_enrolled(SHOP, 0, SOON)?;
    Ok(String::new())
}

fn taint(world: &World) -> Result<String> {
    taint::gone(world, START).map(|took| format!("{:.1} s after kubectl apply", took.as_secs_f64()))
}

/// The webhook's certificate must be there before its pods.
fn certificate(world: &World) -> Result<()> {
    world.create_namespace()?;
    certificates::stand_in(&world.kube)
}

fn webhook(world: &World) -> Result<String> {
    let kube = &world.kube;
    certificates::trust(kube)?;
    kube.rollout(NAMESPACE, "deployment/sidetrack-webhook", START)?;
    world.wait_agents()?;
    let pod = mesh::bare_with_init("component", SHOP, &world.options.mesh_image);
    is_replaced(world, &pod)?;
    is_ready(world, "component").context("sidetrack-validation")?;
    world.delete_pod("component")?;
    Ok(String::new())
}
