//! A pod that numbers its users on its own (`hostUsers: false`).

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, is},
    network::{FIRST_OWN_USER, Lab, manifest},
    node::VIP,
    protocol::{APP, Dial, Identity, PROXY, ROOT},
    sidecar,
};

use crate::fixture::at;

/// A user of the pod, as the node numbers it.
fn inside(identity: &Identity) -> Identity {
    Identity::with_gid(FIRST_OWN_USER + identity.uid, FIRST_OWN_USER + identity.gid)
}

kernel_test!(ids_are_those_of_the_pod);
fn ids_are_those_of_the_pod() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod_with_own_users("app", 2)?;
    let outside = lab.outside().actor()?;
    sidecar::listen(&outside, &ROOT, 80)?;
    let agent = Agent::start(lab.places())?;
    let servers = pod.actor()?;
    for port in [15001, 15006] {
        sidecar::listen(&servers, &inside(&PROXY), port)?;
    }
    sidecar::listen(&servers, &inside(&APP), 80)?;
    let text = manifest("app", &pod, &[]).edited(|pod| pod["spec"]["hostUsers"] = false.into());
    lab.enroll_manifest("app", &text)?;
    let row = agent.places.pod("test/app")?.unwrap_or_default();
    ensure!(
        row["notes"].to_string().contains("0 is 100000") && row["policy"]["proxy_uids"][0] == 1337,
        "{row}"
    );

    let client = pod.actor()?;
    let other_gid = Identity::with_gid(FIRST_OWN_USER + APP.uid, FIRST_OWN_USER + PROXY.gid);
    for (who, to, by) in [
        (&inside(&APP), VIP, 15001),
        (&inside(&PROXY), VIP, 80),
        (&inside(&PROXY), "10.77.0.2", 15006),
        (&other_gid, VIP, 80),
        // Another 1337: the node's.
        (&PROXY, VIP, 15001),
        (&PROXY, "10.77.0.2", 80),
    ] {
        let connected = client.connect(who, at(to, 80))?;
        ensure!(
            connected.accepted_by == by,
            "{who:?} to {to}: {connected:?}"
        );
    }
    let arrived = outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(
        arrived
            .as_ref()
            .is_ok_and(|arrived| arrived.accepted_by == 15006),
        "{arrived:?}"
    );

    // A user that the pod's namespace does not have; the previous policy stays active.
    let absent = text.with_istio_init(&["-u", "70000"], &[]);
    lab.write_manifest("app", &absent)?;
    agent
        .places
        .wait_pod("test/app", is("outdated", "user 70000 does not exist"))?;
    let still = client.dial(Dial::new(&inside(&APP), at(VIP, 80)))?;
    ensure!(still.is_ok_and(|still| still.accepted_by == 15001));
    Ok(())
}
