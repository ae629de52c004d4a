//! Whose connection it is: the creator's filesystem ids, whatever happens to the socket later.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    protocol::{APP, Dial, Identity, PROXY, ROOT},
    sidecar,
};

use crate::fixture::{Arrives, POD, PodFixture, SharedFixture, VIP, at, check};

fn to_own(
    fixture: &SharedFixture,
    creator: &Identity,
    connector: &Identity,
    arrives: Arrives,
) -> Result<()> {
    for own in POD {
        let mut dial = Dial::new(creator, at(own, 80));
        dial.connector = Some(connector.clone());
        let result = fixture.dial(dial)?;
        check(&result, arrives, own, at(own, 80))
            .with_context(|| format!("created by {creator:?}, connected by {connector:?}"))?;
    }
    Ok(())
}

fn captured(fixture: &SharedFixture, creator: &Identity, connector: &Identity) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(creator, to);
        dial.connector = Some(connector.clone());
        let result = fixture.dial(dial)?;
        check(&result, Arrives::Sidecar(15001), POD[family], to)
            .with_context(|| format!("created by {creator:?}, connected by {connector:?}"))?;
    }
    Ok(())
}

/// Connections to a service reach the service itself.
fn off_pod_untouched(fixture: &SharedFixture, creator: &Identity) -> Result<()> {
    for vip in VIP {
        let to = at(vip, 80);
        let result = fixture.dial(Dial::new(creator, to))?;
        let connected = result.map_err(|errno| anyhow!("to {to}: errno {errno}"))?;
        ensure!(
            connected.accepted_by == 80 && connected.server.local == to,
            "created by {creator:?}: {connected:?}"
        );
    }
    Ok(())
}

shared_test!(setuid_after_socket);
fn setuid_after_socket(fixture: &SharedFixture) -> Result<()> {
    captured(fixture, &ROOT, &PROXY)?;
    to_own(fixture, &ROOT, &PROXY, Arrives::Untouched)
}

shared_test!(descriptor_passed_on);
fn descriptor_passed_on(fixture: &SharedFixture) -> Result<()> {
    to_own(fixture, &PROXY, &ROOT, Arrives::Sidecar(15006))?;
    to_own(fixture, &PROXY, &APP, Arrives::Sidecar(15006))?;
    captured(fixture, &APP, &PROXY)
}

kernel_test!(calls_of_the_proxy_that_another_rule_leaves_alone);
/// Only the owner indicates whose they are, and the rules for the owner do not count for them.
fn calls_of_the_proxy_that_another_rule_leaves_alone() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[("traffic.sidecar.istio.io/excludeOutboundPorts", "80")])?;
    for own in POD {
        for _ in 0..2 {
            let result = fixture.client.dial(Dial::new(&PROXY, at(own, 80)))?;
            check(&result, Arrives::Untouched, own, at(own, 80))?;
        }
    }
    Ok(())
}

shared_test!(setuid_program);
fn setuid_program(fixture: &SharedFixture) -> Result<()> {
    let mut identity = PROXY;
    identity.real_uid = Some(APP.uid);
    to_own(fixture, &identity, &identity, Arrives::Sidecar(15006))
}

shared_test!(primary_group);
fn primary_group(fixture: &SharedFixture) -> Result<()> {
    let identity = Identity::with_gid(APP.uid, PROXY.gid);
    off_pod_untouched(fixture, &identity)?;
    to_own(fixture, &identity, &identity, Arrives::Untouched)
}

shared_test!(supplementary_group);
fn supplementary_group(fixture: &SharedFixture) -> Result<()> {
    let mut identity = APP;
    identity.groups = vec![PROXY.gid];
    captured(fixture, &identity, &identity)
}

shared_test!(user_and_group_are_distinguished);
/// The same two numbers, exchanged: only the uid of the proxy makes the pod's own addresses lead to the
/// sidecar.
fn user_and_group_are_distinguished(fixture: &SharedFixture) -> Result<()> {
    let by_uid = Identity::with_gid(PROXY.uid, APP.gid);
    to_own(fixture, &by_uid, &by_uid, Arrives::Sidecar(15006))?;
    off_pod_untouched(fixture, &by_uid)?;
    let by_gid = Identity::with_gid(APP.uid, PROXY.gid);
    to_own(fixture, &by_gid, &by_gid, Arrives::Untouched)?;
    off_pod_untouched(fixture, &by_gid)
}

shared_test!(filesystem_uid);
/// setfsuid: the effective uid does not count.
fn filesystem_uid(fixture: &SharedFixture) -> Result<()> {
    let mut proxy = ROOT;
    proxy.fs_uid = Some(PROXY.uid);
    to_own(fixture, &proxy, &proxy, Arrives::Sidecar(15006))?;
    off_pod_untouched(fixture, &proxy)?;
    let mut app = Identity::with_gid(PROXY.uid, APP.gid);
    app.real_uid = Some(APP.uid);
    app.fs_uid = Some(APP.uid);
    to_own(fixture, &app, &app, Arrives::Untouched)?;
    captured(fixture, &app, &app)
}

shared_test!(filesystem_gid);
/// setfsgid: the effective gid does not count.
fn filesystem_gid(fixture: &SharedFixture) -> Result<()> {
    let mut proxy = APP;
    proxy.fs_gid = Some(PROXY.gid);
    off_pod_untouched(fixture, &proxy)?;
    let mut app = Identity::with_gid(APP.uid, PROXY.gid);
    app.fs_gid = Some(APP.gid);
    captured(fixture, &app, &app)
}

kernel_test!(socket_opened_before_enrollment);
/// The owner is read when the socket connects, so it does not matter that nothing watched when it was
/// opened.
fn socket_opened_before_enrollment() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let pause = fixture.lab.dir().join("pause");
    let own = at("10.77.0.2", 80);
    let mut dial = Dial::new(&PROXY, own);
    dial.connector = Some(ROOT);
    dial.pause = Some(pause.clone());
    thread::scope(|scope| {
        let dialing = scope.spawn(|| fixture.client.dial(dial));
        while !pause.with_extension("created").exists() {
            thread::sleep(Duration::from_millis(5));
        }
        let enrolled = fixture.enroll(&[]);
        fs::write(pause.with_extension("go"), "")?;
        enrolled?;
        let result = dialing
            .join()
            .map_err(|_| anyhow!("the dialing thread panicked"))??;
        check(&result, Arrives::Sidecar(15006), "10.77.0.2", own)
    })
}
