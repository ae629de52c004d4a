//! The node's disk does not answer.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra},
    hanging::HangingFs,
    network::Lab,
    runtime::Runtime,
    sidecar,
    wait::eventually,
};
use nix::sys::signal::Signal;

/// A pod's grace period is longer, and a process that waits for a disk would never end.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

kernel_test!(an_agent_whose_disk_hangs_serves_and_ends);
/// The agent writes the plugin into a directory on a file system that never answers.
fn an_agent_whose_disk_hangs_serves_and_ends() -> Result<()> {
    let mut lab = Lab::new()?;
    let runtime = Runtime::new(&lab)?;
    let bin = lab.dir().join("hanging");
    fs::create_dir(&bin)?;
    let _hanging = HangingFs::mount(&bin)?;
    let (bin, conf) = (bin.display().to_string(), runtime.conf());
    let arguments = ["--cni-bin-dir", &*bin, "--cni-conf-dir", &*conf];
    let mut agent = Agent::start_with(lab.places(), &Extra::arguments(&arguments))?;
    eventually(Duration::from_secs(20), || {
        let problems = lab.places().problems()?;
        ensure!(
            problems.contains("the node's disk does not answer"),
            "{problems}"
        );
        Ok(())
    })?;
    for probe in ["live", "ready"] {
        let output = lab.places().output(&["probe", probe])?;
        ensure!(output.status.success(), "{probe}: {output:?}");
    }
    let pod = lab.pod("app", 2)?;
    let _sidecar = sidecar::start(&pod, &[])?;
    lab.enroll("app", &pod, &[])?;
    let took = agent.end(Signal::SIGTERM)?;
    ensure!(took < ENDS_WITHIN, "{took:?}\n{}", lab.places().log());
    Ok(())
}
