//! Whose connection it is: the creator's filesystem ids, whatever happens to the socket later.

use anyhow::{Context as _, Result};
use lab::protocol::{APP, Dial, Identity, PROXY, ROOT};

use crate::{
    SharedTest,
    fixture::{Arrives, POD, VIP, World, at, check},
};

pub fn tests() -> Vec<(&'static str, SharedTest)> {
    vec![
        ("owner::setuid_after_socket", setuid_after_socket),
        ("owner::descriptor_passed_on", passed_on),
        ("owner::setuid_program", setuid_program),
        ("owner::primary_group", primary_group),
        ("owner::supplementary_group", supplementary_group),
        ("owner::socket_opened_before_enrolment", before_enrolment),
    ]
}

fn to_own(world: &World, creator: &Identity, connector: &Identity, arrives: Arrives) -> Result<()> {
    for own in POD {
        let mut dial = Dial::new(creator, at(own, 80));
        dial.connector = Some(connector.clone());
        let result = world.dial(dial)?;
        check(&result, arrives, own, at(own, 80))
            .with_context(|| format!("created by {creator:?}, connected by {connector:?}"))?;
    }
    Ok(())
}

fn captured(world: &World, creator: &Identity, connector: &Identity) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(creator, to);
        dial.connector = Some(connector.clone());
        let result = world.dial(dial)?;
        check(&result, Arrives::Sidecar(15001), POD[family], to)
            .with_context(|| format!("created by {creator:?}, connected by {connector:?}"))?;
    }
    Ok(())
}

fn setuid_after_socket(world: &World) -> Result<()> {
    captured(world, &ROOT, &PROXY)?;
    to_own(world, &ROOT, &PROXY, Arrives::Untouched)
}

fn passed_on(world: &World) -> Result<()> {
    to_own(world, &PROXY, &ROOT, Arrives::Sidecar(15006))?;
    to_own(world, &PROXY, &APP, Arrives::Sidecar(15006))?;
    captured(world, &APP, &PROXY)
}

fn setuid_program(world: &World) -> Result<()> {
    let mut identity = PROXY;
    identity.real_uid = Some(APP.uid);
    to_own(world, &identity, &identity, Arrives::Sidecar(15006))
}

fn primary_group(world: &World) -> Result<()> {
    let identity = Identity::with_gid(APP.uid, PROXY.gid);
    let to = at(VIP[0], 80);
    let result = world.dial(Dial::new(&identity, to))?;
    let connected = result.map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    anyhow::ensure!(
        connected.server.local == to,
        "off the pod untouched: {connected:?}"
    );
    to_own(world, &identity, &identity, Arrives::Untouched)
}

fn supplementary_group(world: &World) -> Result<()> {
    let mut identity = APP;
    identity.groups = vec![PROXY.gid];
    captured(world, &identity, &identity)
}

/// The owner is read when the socket connects, so it needs nobody watching when it was opened.
fn before_enrolment(_: &World) -> Result<()> {
    crate::lifecycle::sidecar_socket_opened_before_enrolment()
}
