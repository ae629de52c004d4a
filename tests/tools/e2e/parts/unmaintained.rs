//! The plugin's flags are removed from the DaemonSet without the chart: its entry stays on the nodes, and no agent keeps
//! it in place any more.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::plugin::first_is_intercepted;
use crate::{
    helm::NAMESPACE,
    mesh, node,
    report::Checks,
    world::{BY_ITSELF, SHOP, SOON, World},
};

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    kube.label(SHOP, Some("enabled"))?;
    world
        .helm
        .upgrade(&json!({"cni": {"enabled": true, "remove": false}}))?;
    world.wait_agents()?;
    world.wait_plugin()?;
    take_flags_away(world)?;
    world.wait_agents()?;
    let reported = kube.wait("sidetrack status names the entry", SOON, |_| {
        for status in world.ask_agents(&["status"])? {
            let problems = status["problems"].to_string();
            ensure!(
                problems.contains("its entry is in /etc/cni/net.d/")
                    && problems.contains("cni.remove=true"),
                "{problems}"
            );
        }
        Ok(Some(String::new()))
    });
    checks.record(
        "without its flags agents report the plugin's entry, and how to remove it",
        reported,
    );
    let url = world.url(SHOP)?;
    kube.apply(&[mesh::first(
        "unmaintained",
        SHOP,
        &world.options.mesh_image,
        &url,
    )])?;
    checks.record(
        "they answer the plugin: a pod that starts is intercepted from its first connection",
        first_is_intercepted(world, "unmaintained").map(|()| String::new()),
    );
    world.helm.uninstall()?;
    checks.record(
        "an uninstall takes the entry away",
        node::wait_clean(kube, BY_ITSELF).map(|()| String::new()),
    );
    world.remove_install()?;
    world.clean_if_needed()?;
    world.install(&json!({}))?;
    world.wait_enrolled(SHOP, 2, SOON)
}

/// What somebody does who edits the DaemonSet by hand. The mounts may stay.
fn take_flags_away(world: &World) -> Result<()> {
    let of = ["-n", NAMESPACE, "daemonset", "sidetrack"];
    let daemonset = world.kube.get(&of)?;
    let arguments = &daemonset["spec"]["template"]["spec"]["containers"][0]["args"];
    let kept: Vec<&Value> = arguments
        .as_array()
        .into_iter()
        .flatten()
        .filter(|argument| {
            !argument
                .as_str()
                .is_some_and(|text| text.starts_with("--cni-"))
        })
        .collect();
    let patch =
        json!([{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": kept}]);
    world.patch_agents("json", &patch.to_string())
}
