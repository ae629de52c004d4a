//! Pins and links of the program for forwarded packets, after someone has removed them.

use std::{fs, os::fd::AsFd as _};

use anyhow::{Context as _, Result};
use lab::{product::sys, sidecar};
use nix::sys::signal::Signal;

use super::{check_both_ways, fixture::Forwarding};

kernel_test!(what_others_remove_comes_back);
fn what_others_remove_comes_back() -> Result<()> {
    let mut pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    pod.fixture.enroll(&[])?;
    pod.wait_programs(2)?;
    if !pod.filters()?.is_empty() {
        // Before Linux 6.6 there are no pins: the agent notices in the pod's network what is removed.
        return Ok(());
    }
    let places = pod.fixture.agent.places.clone();
    let all = pod.pins()?;
    let dir = all
        .values()
        .next()
        .and_then(|pin| pin.parent())
        .context("a pin")?;
    for pin in all.values() {
        fs::remove_file(pin)?;
    }
    pod.wait_programs(2)?;
    places.wait_logged("was gone: made it again", 2)?;
    // Everything of the pod.
    fs::remove_dir_all(dir)?;
    pod.wait_programs(2)?;
    check_both_ways(&pod, 15006, 15006)?;
    for pin in pod.pins()?.into_values() {
        let link = sys::open_pin(&pin)?;
        sys::link_detach(link.as_fd())?;
    }
    places.wait_logged("program for forwarded packets was detached", 2)?;
    check_both_ways(&pod, 15006, 15006)?;
    // An agent that is killed then leaves what it pinned.
    pod.fixture.agent.end(Signal::SIGKILL)?;
    check_both_ways(&pod, 15006, 15006)
}
