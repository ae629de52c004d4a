//! The sidecar's listeners come and go.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use lab::{
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::eventually,
};

use crate::{
    fixture::{PodFixture, at},
    sockets::group,
};

kernel_test!(a_running_sidecar_is_adopted);
fn a_running_sidecar_is_adopted() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let connected = fixture.outside.connect(&ROOT, at("10.77.0.2", 80))?;
    ensure!(connected.accepted_by == 15006, "{connected:?}");
    Ok(())
}

kernel_test!(sidecar_down_means_refused);
fn sidecar_down_means_refused() -> Result<()> {
    let fixture = PodFixture::new()?;
    let app = fixture.pod.actor()?;
    sidecar::listen(&app, &APP, 80)?;
    fixture.enroll(&[])?;
    let refused = Err(libc::ECONNREFUSED);
    let outbound = fixture.dial(at(VIP, 80))?;
    ensure!(outbound == refused, "outbound: {outbound:?}");
    let inbound = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(inbound == refused, "inbound: {inbound:?}");
    // The same after a sidecar has come and gone.
    let sidecar = sidecar::start(&fixture.pod, &[])?;
    let up = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(up.is_ok_and(|up| up.accepted_by == 15006), "with a sidecar");
    drop(sidecar);
    let inbound = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(inbound == refused, "inbound again: {inbound:?}");
    let outbound = fixture.dial(at(VIP, 80))?;
    ensure!(outbound == refused, "outbound again: {outbound:?}");
    Ok(())
}

kernel_test!(listener_groups_shrink);
fn listener_groups_shrink() -> Result<()> {
    const WORKERS: usize = 4;
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let sidecar = fixture.pod.actor()?;
    let id = sidecar.listen_group(group(15006, WORKERS))?;
    let inbound = || -> Result<u16> {
        let connected = fixture
            .outside
            .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
        Ok(connected
            .map_err(|errno| anyhow!("errno {errno}"))?
            .accepted_by)
    };
    for worker in 0..WORKERS - 1 {
        ensure!(inbound()? == 15006);
        sidecar.close(id, worker)?;
    }
    // A closed worker's connections go to the others.
    for _ in 0..10 {
        ensure!(inbound()? == 15006);
    }
    Ok(())
}

kernel_test!(listener_groups_on_loopback_shrink);
/// More listeners than there are slots: the others are found when those go.
fn listener_groups_on_loopback_shrink() -> Result<()> {
    const WORKERS: usize = 6;
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let sidecar = fixture.pod.actor()?;
    let mut listen = group(15001, WORKERS);
    listen.address = at("127.0.0.1", 15001);
    let id = sidecar.listen_group(listen)?;
    for worker in 0..WORKERS - 1 {
        sidecar.close(id, worker)?;
        // The agent looks for listeners of a pod that has none after some seconds.
        eventually(Duration::from_secs(20), || {
            let made = fixture.dial(at(VIP, 80))?;
            ensure!(made.is_ok_and(|made| made.accepted_by == 15001));
            Ok(())
        })?;
    }
    Ok(())
}
