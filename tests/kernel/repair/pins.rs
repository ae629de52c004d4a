//! Pins that were removed.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use lab::{agent::Agent, product::CGROUP_HOOKS};
use nix::sys::signal::Signal;

use super::{cookie, enrolled_pod, pins, was_repaired, works};

kernel_test!(removed_pins_are_made_again);
fn removed_pins_are_made_again() -> Result<()> {
    let (mut fixture, _sidecar) = enrolled_pod(&[])?;
    let pins = pins(&fixture)?;
    let pod = pins.pod_link(cookie(&fixture)?);
    let callbacks = pins.pod_callbacks(cookie(&fixture)?);
    let removed = [
        pins.link("connect4"),
        pins.link("getsockopt"),
        pins.map("POD_BY_NETNS"),
        pins.map("RECORD_BY_SOCK"),
        callbacks,
        pod.clone(),
    ];
    for path in &removed {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    fs::remove_dir(pod.parent().context("a directory")?)?;
    // Nothing is detached, so no connection bypasses the sidecar meanwhile.
    for path in &removed {
        fixture.wait(&path.display().to_string(), || {
            works(&fixture)?;
            Ok(path.exists())
        })?;
    }
    let times = removed.len();
    was_repaired(&fixture, "was gone: made it again", times..=times)?;
    // What was pinned are the same objects: they outlive the agent.
    fixture.agent.end(Signal::SIGKILL)?;
    works(&fixture).context("without an agent")?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.agent.places.wait_enrolled("test/app")?;
    works(&fixture).context("with a successor")
}

kernel_test!(the_directory_stays_the_agents);
/// Everything below the bpffs is removed: another agent or a cleanup still finds it in use.
fn the_directory_stays_the_agents() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let root = pins(&fixture)?.root().to_owned();
    fs::remove_dir_all(&root)?;
    fixture.wait("enrolled again", || {
        Ok(fixture.agent.places.log().contains("took it again"))
    })?;
    let mut other = fixture.lab.places().clone();
    other.socket = fixture.lab.dir().join("other.sock");
    let cleanup = other.output(&["cleanup"])?;
    let said = String::from_utf8_lossy(&cleanup.stderr).into_owned();
    ensure!(said.contains("an agent is running"), "{cleanup:?}");
    ensure!(root.exists(), "nothing is removed");
    was_repaired(&fixture, "took it again", 1..=1)?;
    // Some pins may have been made again while the rest was removed, and were removed as well.
    was_repaired(&fixture, "was gone: made it again", CGROUP_HOOKS.len()..)
}
