//! The connection callbacks are on the cgroups of enrolled pods, and on that of all pods only for those
//! that need them there.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    network::{Manifest, PodNet, manifest},
    product::{Pins, sys},
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::eventually,
};
use nix::sys::signal::Signal;
use std::os::fd::AsFd as _;

use crate::fixture::{Arrives, POD, PodFixture, VIP, at, check};

/// The agent has looked at the processes of a pod within this.
const LOOKED: Duration = Duration::from_secs(25);

/// Ids of the cgroups that have them: of all pods, and those of pods' own.
fn attached(fixture: &PodFixture) -> Result<(Option<u64>, Vec<u64>)> {
    let pins = Pins::new(&fixture.agent.places.bpffs)?;
    let cgroup = |path: std::path::PathBuf| -> Option<u64> {
        let link = sys::open_pin(&path).ok()?;
        sys::link_cgroup(link.as_fd()).ok()
    };
    let own = pins.pinned_pods()?;
    let own = own
        .into_iter()
        .filter_map(|pod| cgroup(pins.pod_callbacks(pod)));
    Ok((cgroup(pins.link("sockops")), own.collect()))
}

fn id(path: &std::path::Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(std::fs::metadata(path)?.ino())
}

fn wait(fixture: &PodFixture, wanted: &(Option<u64>, Vec<u64>)) -> Result<()> {
    eventually(LOOKED, || {
        let found = attached(fixture)?;
        ensure!(found == *wanted, "{found:?}, not {wanted:?}");
        Ok(())
    })
}

/// Redirected with a record at both ends.
fn works(client: &Actor) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let result = client.dial(Dial::new(&APP, to))?;
        check(&result, Arrives::Sidecar(15001), POD[family], to)?;
    }
    Ok(())
}

fn fixture() -> Result<PodFixture> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    fixture.outside.listen(&ROOT, at("::", 80))?;
    Ok(fixture)
}

fn without_uid(pod: &PodNet) -> Manifest {
    manifest("app", pod, &[]).edited(|object| object["metadata"]["uid"] = "not-a-uid".into())
}

kernel_test!(only_enrolled_pods_have_them);
fn only_enrolled_pods_have_them() -> Result<()> {
    let fixture = fixture()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    ensure!(attached(&fixture)? == (None, Vec::new()));
    fixture.enroll(&[])?;
    let own = id(fixture.pod.own_cgroup())?;
    ensure!(attached(&fixture)? == (None, vec![own]));
    works(&fixture.client)?;
    let status = fixture.agent.places.json(&["status", "-o", "json"])?;
    let hooks = status["hooks"].as_array().context("hooks")?;
    let callbacks = hooks.iter().find(|it| it["hook"] == "sockops");
    let callbacks = callbacks.context("the hook")?;
    ensure!(
        callbacks["attached"] == true && callbacks["pods"] == 1,
        "{callbacks}"
    );
    fixture.lab.release("app")?;
    ensure!(attached(&fixture)? == (None, Vec::new()));
    Ok(())
}

kernel_test!(a_pod_without_a_known_cgroup_has_them_by_that_of_all);
fn a_pod_without_a_known_cgroup_has_them_by_that_of_all() -> Result<()> {
    let mut fixture = fixture()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture
        .lab
        .enroll_manifest("app", &without_uid(&fixture.pod))?;
    let all = id(&fixture.lab.places().cgroup)?;
    ensure!(attached(&fixture)? == (Some(all), Vec::new()));
    works(&fixture.client)?;
    // The next agent has the UID: it moves them, and no connection is lost meanwhile.
    fixture.agent.end(Signal::SIGKILL)?;
    fixture.lab.write_pod("app", &fixture.pod, &[])?;
    fixture.agent = lab::agent::Agent::start(fixture.lab.places())?;
    fixture.agent.places.wait_enrolled("test/app")?;
    let own = id(fixture.pod.own_cgroup())?;
    let deadline = Instant::now() + LOOKED;
    while attached(&fixture)? != (None, vec![own]) {
        works(&fixture.client)?;
        ensure!(Instant::now() < deadline, "{:?}", attached(&fixture)?);
    }
    works(&fixture.client)
}

kernel_test!(a_process_in_another_cgroup_is_noticed);
/// As somebody has it who enters a pod's network from another pod. Connections of both families need no callback. What
/// needs them is refused until the agent has seen the process; nothing passes the sidecar.
fn a_process_in_another_cgroup_is_noticed() -> Result<()> {
    let fixture = fixture()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let own = id(fixture.pod.own_cgroup())?;
    let all = id(&fixture.lab.places().cgroup)?;
    let visitor = Actor::start(&fixture.pod.netns, &fixture.agent.places.cgroup)?;
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let result = visitor.dial(Dial::new(&APP, to))?;
        check(&result, Arrives::Sidecar(15001), POD[family], to)?;
    }
    // A socket that is bound to loopback cannot have a target.
    let mut bound = Dial::new(&APP, at(VIP[1], 80));
    bound.source = Some(at("::1", 0));
    while attached(&fixture)?.0.is_none() {
        let result = visitor.dial(bound.clone())?;
        let is_late = result.is_ok() && attached(&fixture)?.0.is_some();
        ensure!(is_late || result == Err(libc::ECONNREFUSED), "{result:?}");
    }
    wait(&fixture, &(Some(all), vec![own]))?;
    works(&visitor)?;
    works(&fixture.client)?;
    let text = format!("process {} is in another cgroup", visitor.pid());
    eventually(LOOKED, || {
        let status = fixture.agent.places.json(&["status", "-o", "json"])?;
        ensure!(status["notes"].to_string().contains(&text), "{status}");
        Ok(())
    })?;
    drop(visitor);
    wait(&fixture, &(None, vec![own]))?;
    works(&fixture.client)
}
