//! The nodes: their own network namespaces, and the image of the agents.

mod dead;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    load::{Window, wait_until_printed},
    mesh::{self, ON_HOST},
    node::run_on_each,
    report::Checks,
    world::{SHOP, SOON, START, World},
};

/// Pods that start at a time, and how often.
const STARTING: usize = 8;
const TURNS: usize = 3;
/// Requests a second from the node's network.
const RATE: u32 = 100;

/// Prints the inodes of the namespaces that are a node's own: those of its first process, of a pod with the node's
/// network, and of what starts pods. The last has another one on nodes that are containers themselves.
const OWN: &str = r#"
{
  stat -L -c %i /proc/1/ns/net /proc/self/ns/net
  grep -lE '^(kubelet|containerd|crio|conmon|dockerd)' /proc/[0-9]*/comm 2>/dev/null | while read -r comm; do
    stat -L -c %i "${comm%/comm}/ns/net" 2>/dev/null
  done
} | sort -u
"#;

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    checks.record(
        "the agents run the image that was named",
        image_of_agents(world),
    );
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)?;

    kube.apply(&[mesh::load_on_host(SHOP, image, &world.url(SHOP)?, RATE)])?;
    let workload = format!("deployment/{ON_HOST}");
    kube.rollout(SHOP, &workload, START)?;
    checks.record(
        "a pod with hostNetwork, a sidecar and the label is skipped, with the reason",
        skipped(world),
    );
    let window = Window::open();
    checks.record(
        &format!(
            "{} pods start: no node's own network namespace is enrolled",
            STARTING * TURNS
        ),
        starts(world),
    );
    let period = window.end();
    wait_until_printed();
    checks.record(
        "connections of the node's own network are not redirected meanwhile",
        period.seen_by(kube, SHOP, &workload)?.none_redirected(),
    );
    checks.record(
        "NETNS leads to the pod's network namespace",
        paths_are_true(world),
    );
    kube.run(&["-n", SHOP, "delete", &workload, "--wait=false"])?;
    dead::run(world, checks)
}

/// The agents' image has the name that was asked for; runtimes add the registry where a name has none.
/// By digest: a tag may have been given to another image since, and a node may have kept the earlier one.
fn image_of_agents(world: &World) -> Result<String> {
    const NAME: &str = "image";
    let agents = world.agents()?;
    ensure!(!agents.is_empty(), "there is no agent");
    let (kube, image) = (&world.kube, &world.options.image);
    for agent in agents {
        // What the reference is on that node now.
        let node = &agent["spec"]["nodeName"];
        kube.apply(&[json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": NAME, "namespace": SHOP},
            "spec": {
                "nodeName": node, "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": NAME, "image": image, "command": ["sidetrack", "--version"]}],
            },
        })])?;
        let pod = format!("pod/{NAME}");
        let named = kube.wait("an image's digest", START, |kube| {
            digest(&kube.get(&["-n", SHOP, &pod])?).map(Some)
        });
        kube.run(&["-n", SHOP, "delete", "--wait", "--now", &pod])?;
        let (named, running) = (named?, digest(&agent)?);
        ensure!(
            running == named,
            "on {node} the agent runs {running}, and {image} is {named}"
        );
    }
    Ok(image.clone())
}

/// The digest of the image that a pod's first container runs.
fn digest(pod: &Value) -> Result<String> {
    let id = pod["status"]["containerStatuses"][0]["imageID"].as_str();
    let (_, digest) = id
        .and_then(|id| id.rsplit_once("sha256:"))
        .with_context(|| format!("no digest yet: {}", pod["status"]))?;
    Ok(digest.to_owned())
}

/// The row of the pod with the node's network.
fn skipped(world: &World) -> Result<String> {
    world.kube.wait("the pod's row", SOON, |_| {
        let answers = world.ask_agents(&["pods"])?;
        let mut rows = answers.iter().filter_map(Value::as_array).flatten();
        let row = rows
            .find(|row| {
                row["name"]
                    .as_str()
                    .is_some_and(|name| name.starts_with(ON_HOST))
            })
            .context("no such pod")?;
        let reason = row["reason"].as_str().unwrap_or_default();
        ensure!(
            row["state"] == "skipped"
                && row["netns"].is_null()
                && reason.contains("host's network"),
            "{row}"
        );
        Ok(Some(reason.to_owned()))
    })
}

/// Starts and ends pods with a sidecar, and looks at what is enrolled all the time.
fn starts(world: &World) -> Result<String> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    let own = own_namespaces(world)?;
    let looks = Cell::new(0);
    for _ in 0..TURNS {
        kube.apply(&[mesh::crowd(SHOP, image, STARTING)])?;
        wait_while_watched(world, 2 + STARTING, &own, &looks)?;
        kube.run(&["-n", SHOP, "delete", "deployment/crowd", "--wait=false"])?;
        wait_while_watched(world, 2, &own, &looks)?;
    }
    Ok(format!("looked {} times", looks.get()))
}

/// Waits for that many enrolled pods. A node's own namespace among theirs is an error at once.
fn wait_while_watched(
    world: &World,
    count: usize,
    own: &BTreeMap<String, BTreeSet<u64>>,
    looks: &Cell<usize>,
) -> Result<()> {
    let what = format!("{count} pods of {SHOP} are enrolled");
    let fault = world.kube.wait(&what, START, |_| {
        let rows = enrolled(world)?;
        looks.set(looks.get() + 1);
        let fault = rows.iter().find(|row| {
            own.get(&row.node)
                .is_some_and(|own| own.contains(&row.inode))
        });
        if let Some(row) = fault {
            return Ok(Some(Some(format!(
                "{} of {} is enrolled with the node's own namespace",
                row.pod, row.node
            ))));
        }
        ensure!(rows.len() == count, "{} are", rows.len());
        Ok(Some(None))
    })?;
    fault.map_or(Ok(()), |fault| Err(anyhow::Error::msg(fault)))
}

/// The inodes of the nodes' own namespaces.
fn own_namespaces(world: &World) -> Result<BTreeMap<String, BTreeSet<u64>>> {
    let mut all = BTreeMap::new();
    for (node, text) in run_on_each(&world.kube, OWN)? {
        let inodes: Result<BTreeSet<u64>, _> = text.split_whitespace().map(str::parse).collect();
        let inodes = inodes.with_context(|| format!("{node}: {text}"))?;
        ensure!(!inodes.is_empty(), "{node}: no namespace");
        all.insert(node, inodes);
    }
    Ok(all)
}

/// An enrolled pod.
struct Enrolled {
    node: String,
    pod: String,
    inode: u64,
    path: String,
}

/// All of [`SHOP`].
fn enrolled(world: &World) -> Result<Vec<Enrolled>> {
    let mut all = Vec::new();
    for (node, rows) in world.ask_by_node(&["pods"])? {
        for row in rows.as_array().context("a list of pods")? {
            let netns = &row["netns"];
            if row["namespace"] != SHOP || netns.is_null() {
                continue;
            }
            all.push(Enrolled {
                node: node.clone(),
                pod: row["name"].as_str().context("a name")?.to_owned(),
                inode: netns["inode"].as_u64().context("an inode")?,
                path: netns["path"].as_str().context("a path")?.to_owned(),
            });
        }
    }
    Ok(all)
}

/// The paths that `sidetrack pods` shows, as the node sees them.
fn paths_are_true(world: &World) -> Result<String> {
    let pods = enrolled(world)?;
    for Enrolled {
        node,
        pod,
        inode,
        path,
    } in &pods
    {
        if *path == format!("net:[{inode}]") {
            continue;
        }
        let script = format!("nsenter -t 1 -m -- stat -L -c %i {path}");
        let texts = run_on_each(&world.kube, &script)?;
        let seen = texts.get(node).map_or("", |text| text.trim());
        ensure!(
            seen == inode.to_string(),
            "{pod}: {path} is {seen}, not {inode}"
        );
    }
    Ok(format!("{} pods", pods.len()))
}
