//! What people get wrong, and what they see of it.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::install::pod_of;
use crate::{
    helm::NAMESPACE,
    load::Window,
    report::Checks,
    world::{SHOP, SOON, World},
};

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)?;
    for ports in [json!(["mysql"]), json!([99999])] {
        let values = json!({"defaults": {"excludeOutboundPorts": ports}});
        checks.record(
            &format!("the chart refuses the default excludeOutboundPorts={ports}"),
            refused(world.helm.upgrade(&values), "excludeOutboundPorts"),
        );
    }
    unusable_default(world, checks)?;
    unusable_annotations(world, checks)?;
    kube.label(SHOP, Some("true"))?;
    let said = kube.wait("a reason", SOON, |_| {
        let pods = world.ask_agents(&["pods"])?;
        let text = json!(pods).to_string();
        Ok(text
            .contains("sidetrack.dev/interception is")
            .then(String::new))
    });
    checks.record("a label value that means nothing is named", said);
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)
}

/// Past the chart's schema, as by `kubectl edit`.
fn unusable_default(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    let window = Window::open();
    let patch = |text: &str| {
        let patch = json!({"data": {"mesh.yaml": text}}).to_string();
        let words = [
            "-n",
            NAMESPACE,
            "patch",
            "configmap",
            "sidetrack",
            "--type=merge",
            "-p",
            &patch,
        ];
        kube.run(&words).map(drop)
    };
    patch("defaults: {excludeOutboundPorts: mysql}")?;
    let ready = world
        .restart_agents()
        .and_then(|()| reported(world, "excludeOutboundPorts"));
    checks.record(
        "agents that start with a default they cannot use run, and say so",
        ready,
    );
    checks.record(
        "pods stay intercepted meanwhile",
        window.close(kube, SHOP)?.all_through_sidecars(),
    );
    patch("defaults: {}")?;
    world.restart_agents()?;
    Ok(())
}

fn unusable_annotations(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    let web = pod_of(world, "web")?;
    let annotate = |text: &str| {
        let annotation = format!("traffic.sidecar.istio.io/excludeOutboundPorts={text}");
        kube.run(&[
            "-n",
            SHOP,
            "annotate",
            "pod",
            &web,
            &annotation,
            "--overwrite",
        ])
        .map(drop)
    };
    for (text, wrong) in [("mysql", "\"mysql\""), ("70000", "\"70000\"")] {
        annotate(text)?;
        checks.record(
            &format!("an Event names the annotation's value {text}"),
            event(world, &web, wrong),
        );
    }
    kube.run(&[
        "-n",
        SHOP,
        "annotate",
        "pod",
        &web,
        "traffic.sidecar.istio.io/excludeOutboundPorts-",
    ])?;
    Ok(())
}

fn refused(outcome: Result<()>, named: &str) -> Result<String> {
    match outcome {
        Ok(()) => bail!("it was accepted"),
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(text.contains(named), "{text}");
            Ok(String::new())
        }
    }
}

/// The agents name a problem.
fn reported(world: &World, part: &str) -> Result<String> {
    for status in world.ask_agents(&["status"])? {
        let problems = status["problems"].to_string();
        ensure!(problems.contains(part), "{problems}");
    }
    Ok(String::new())
}

/// A warning about a pod.
fn event(world: &World, pod: &str, part: &str) -> Result<String> {
    world.kube.wait("the Event", SOON, |kube| {
        let events = kube.items(&["-n", SHOP, "events"])?;
        let note = |event: &Value| event["message"].as_str().map(str::to_owned);
        let found = events
            .iter()
            .filter(|event| event["involvedObject"]["name"] == *pod && event["type"] == "Warning")
            .filter_map(note)
            .find(|note| note.contains(part));
        Ok(Some(found.context("no such Event")?))
    })
}
