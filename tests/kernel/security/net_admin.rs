//! A pod with CAP_NET_ADMIN.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    node::VIP,
    protocol::{APP, Dial},
    sidecar,
};

use super::{contained, intercepted, try_all};
use crate::fixture::{PodFixture, at};

kernel_test!(a_pod_with_net_admin);
fn a_pod_with_net_admin() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    intercepted(&fixture, &APP)?;
    let run = |script: &str| -> Result<bool> {
        let output = contained(&fixture.pod, &fixture.lab, script).output()?;
        Ok(output.status.success())
    };
    ensure!(run("true")?, "the container itself");
    ensure!(run("! ls /sys/fs/bpf/* 2>&1 >/dev/null || false")?);
    try_all(&fixture, &APP, true, run)?;
    // Its own routes and addresses are its own: what it changes is followed.
    for change in [
        "ip route replace default via 10.77.0.254 src 10.77.0.2",
        "ip address add 10.77.9.9/16 dev eth0",
        "ip route add 10.201.0.0/16 via 10.77.0.254",
        "ip link set eth0 mtu 1400",
    ] {
        ensure!(run(change)?, "{change}");
        intercepted(&fixture, &APP).with_context(|| format!("after `{change}`"))?;
    }
    // Without a route nothing goes anywhere, and so not past the sidecar.
    ensure!(run("ip route del default")?);
    let start = Instant::now();
    loop {
        let out = fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?;
        match out {
            Err(libc::ENETUNREACH) => return Ok(()),
            Ok(out) if out.accepted_by != 15001 => return Err(anyhow!("{out:?}")),
            _ => ensure!(
                start.elapsed() < Duration::from_secs(2),
                "not followed: {out:?}"
            ),
        }
    }
}
