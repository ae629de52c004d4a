//! The processes by which network namespaces were found end.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{Enrolled, enrolled};
use crate::{
    mesh,
    node::run_on_each,
    report::Checks,
    world::{SHOP, START, World},
};

/// The pod whose processes end.
const POD: &str = "mortal";
/// How long the answers are checked afterwards. kubelet starts containers and sandboxes again within it.
const TIME: Duration = Duration::from_secs(8);

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    kube.apply(&[mesh::bare_without(POD, SHOP, image)])?;
    for (claim, kill) in [
        (
            "a container's first process is killed: NETNS names no process that has ended",
            kill_app as fn(&World) -> Result<Option<i32>>,
        ),
        (
            "the process that NETNS names is killed: NETNS names no process that has ended",
            kill_named,
        ),
    ] {
        world.wait_enrolled(SHOP, 3, START)?;
        let outcome = kill(world).and_then(|killed| stays_true(world, killed));
        checks.record(claim, outcome);
    }
    world.delete_pod(POD)?;
    world.wait_enrolled(SHOP, 2, START)
}

fn pod(world: &World) -> Result<Option<Enrolled>> {
    Ok(enrolled(world)?.into_iter().find(|row| row.pod == POD))
}

/// The process in a path such as /proc/123/ns/net.
fn process(path: &str) -> Option<i32> {
    path.strip_prefix("/proc/")?.split('/').next()?.parse().ok()
}

/// Kills the app with its container, while the sandbox lives. The process that is named may be another.
fn kill_app(world: &World) -> Result<Option<i32>> {
    let row = pod(world)?.context("it is not enrolled")?;
    let script = format!(
        "for net in /proc/[0-9]*/ns/net; do
           pid=${{net#/proc/}}; pid=${{pid%%/*}}
           [ \"$(stat -L -c %i $net 2>/dev/null)\" = {} ] && grep -q 'app.py' /proc/$pid/cmdline && kill -9 $pid && echo $pid
         done; true",
        row.inode
    );
    let killed = run_on_each(&world.kube, &script)?;
    let killed = killed.get(&row.node).context("a node")?;
    ensure!(!killed.trim().is_empty(), "no app to kill");
    Ok(killed
        .split_whitespace()
        .next()
        .and_then(|pid| pid.parse().ok()))
}

/// Kills the process that is named.
fn kill_named(world: &World) -> Result<Option<i32>> {
    let row = pod(world)?.context("it is not enrolled")?;
    let pid = process(&row.path).with_context(|| format!("{} names no process", row.path))?;
    let script = format!(
        "[ \"$(stat -L -c %i {})\" != {} ] || kill -9 {pid}",
        row.path, row.inode
    );
    run_on_each(&world.kube, &script)?;
    Ok(Some(pid))
}

/// Asks again and again which namespace the pod has. One that is named by a process is looked up, and asked for
/// once more if that process has just ended.
fn stays_true(world: &World, killed: Option<i32>) -> Result<String> {
    let start = Instant::now();
    let mut looks = 0;
    let mut named: Option<String> = None;
    while start.elapsed() < TIME {
        let Some(row) = pod(world)? else {
            // Between two sandboxes.
            thread::sleep(Duration::from_millis(200));
            continue;
        };
        looks += 1;
        ensure!(
            killed.is_none() || process(&row.path) != killed,
            "{} has ended",
            row.path
        );
        let is_true = process(&row.path).is_none() || {
            let script = format!("stat -L -c %i {}; true", row.path);
            let seen = run_on_each(&world.kube, &script)?;
            seen.get(&row.node)
                .is_some_and(|text| text.trim() == row.inode.to_string())
        };
        if is_true {
            named = None;
        } else {
            ensure!(
                named.as_ref() != Some(&row.path),
                "{} is not namespace {}",
                row.path,
                row.inode
            );
            named = Some(row.path);
        }
    }
    ensure!(looks > 0, "it was not enrolled any more");
    Ok(format!("looked {looks} times"))
}
