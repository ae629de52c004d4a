//! A sidecar that listens for other pods.

use anyhow::{Result, ensure};
use lab::{
    actor::Actor,
    agent::Agent,
    network::Lab,
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
};

use crate::fixture::at;

kernel_test!(a_sidecar_gets_its_own_pod_only);
/// The sidecar of one pod listens everywhere and on everything it may; connections of another pod, which
/// has none, do not get to it.
fn a_sidecar_gets_its_own_pod_only() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    // The same addresses: only the network namespace distinguishes them.
    let hostile = lab.pod_at("hostile", "10.77.0.7", "fd77::7")?;
    let victim = lab.pod_at("victim", "10.77.0.7", "fd77::7")?;
    for (name, pod) in [("hostile", &hostile), ("victim", &victim)] {
        lab.write_pod(name, pod, &[])?;
    }
    let agent = Agent::start(lab.places())?;
    for name in ["test/hostile", "test/victim"] {
        agent.places.wait_enrolled(name)?;
    }
    let _sidecar = sidecar::start(&hostile, &[80, 8080])?;
    let client = victim.actor()?;
    for to in [at(VIP, 80), at("[fd99::31]".trim_matches(['[', ']']), 80)] {
        for user in [&APP, &ROOT] {
            let result = client.dial(Dial::new(user, to))?;
            ensure!(
                matches!(result, Err(libc::ECONNREFUSED)),
                "{to}: {result:?}"
            );
        }
    }
    // Its own sockets report its own destinations.
    let own = hostile.actor()?;
    let theirs = own.connect(&APP, at("10.200.0.1", 80))?;
    ensure!(
        theirs.server.original_v4 == Ok(at("10.200.0.1", 80)),
        "{theirs:?}"
    );
    // A sidecar that comes up in the victim has the victim's.
    let _late: Actor = sidecar::start(&victim, &[])?;
    let result = client.connect(&APP, at(VIP, 80))?;
    ensure!(result.server.original_v4 == Ok(at(VIP, 80)), "{result:?}");
    Ok(())
}
