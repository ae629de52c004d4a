//! What is lost on kernels that lack a facility sidetrack does without, shown on one that has it.

use anyhow::{Context as _, Result, anyhow, ensure};
use support::{
    agent::{Agent, Extra},
    lab::{Lab, manifest},
    protocol::{APP, Dial},
    sidecar,
};

use crate::{OwnTest, world::at};

const VIP: &str = "10.109.118.31";

/// Tells agent and doctor to do without bpf_set_retval, which came with Linux 5.18.
const WITHOUT: (&str, &str) = ("SIDETRACK_WITHOUT_SET_RETVAL", "1");

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("old_kernels::refusals_without_set_retval", refusals),
        ("old_kernels::doctor_without_set_retval", doctor),
    ]
}

fn refusals() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("app", 2)?;
    pod.ip("route add unreachable 10.202.0.0/16")?;
    pod.ip("route add unreachable fdb2::/64 metric 1")?;
    lab.write_manifest("app", &manifest("app", &pod, &[]))?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let client = pod.actor()?;
    // The second agent replaces the first one's programs.
    for (variables, refused) in [(&[WITHOUT][..], libc::EPERM), (&[], libc::EHOSTUNREACH)] {
        let agent = Agent::start_with(
            lab.places(),
            &Extra {
                variables,
                ..Extra::default()
            },
        )?;
        agent.places.wait_enrolled("test/app")?;
        for to in ["10.202.0.1", "fdb2::1"] {
            let result = client.dial(Dial::new(&APP, at(to, 80)))?;
            ensure!(result == Err(refused), "{to}, {variables:?}: {result:?}");
        }
        let connected = client
            .dial(Dial::new(&APP, at(VIP, 80)))?
            .map_err(|errno| anyhow!("{variables:?}: errno {errno}"))?;
        ensure!(connected.accepted_by == 15001, "{connected:?}");
    }
    Ok(())
}

fn doctor() -> Result<()> {
    let lab = Lab::new()?;
    let output = lab
        .places()
        .command(&["doctor", "-o", "json"])?
        .env(WITHOUT.0, WITHOUT.1)
        .output()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let check = report["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|check| check["since"] == "5.18")
        .context("the facility of 5.18")?;
    ensure!(
        output.status.success() && check["ok"] == false && check["optional"] == true,
        "{report}"
    );
    Ok(())
}
