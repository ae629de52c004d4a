//! The pod that measures whether its node intercepts.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{
    agent::Agent,
    command::{Process, built, run},
    network::{Lab, PodNet},
    wait::eventually,
};
use nix::sys::signal::Signal;

const APP_USER: u32 = 65532;

/// The status and the text of the answer to kubelet.
fn answer(pod: &PodNet) -> String {
    let netns = pod.path();
    let url = "http://127.0.0.1:15020/ready";
    let asked = format!("nsenter --net={netns} curl -s -m 3 -w %{{http_code}} {url}");
    run(&asked).unwrap_or_default()
}

fn wait_for(pod: &PodNet, words: &str) -> Result<()> {
    eventually(Duration::from_secs(20), || {
        let said = answer(pod);
        ensure!(said.contains(words), "{said:?} has not {words:?}");
        Ok(())
    })
}

kernel_test!(an_interception_probe_is_ready_while_its_pod_is_intercepted);
fn an_interception_probe_is_ready_while_its_pod_is_intercepted() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("probe", 2)?;
    let program = built("sidetrack")?;
    let part = |user, words: &[&str]| {
        let words = [&["interception-probe"], words].concat();
        Process::start(&mut pod.command(user, &program, &words))
    };
    let app = part(APP_USER, &["app", "--interval", "100ms"])?;
    let sidecar = part(1337, &["sidecar"])?;
    wait_for(&pod, "was not redirected")?;
    wait_for(&pod, "503")?;

    let mut agent = Agent::start(lab.places())?;
    lab.enroll("probe", &pod, &[])?;
    wait_for(&pod, "ready\n200")?;
    agent.end(Signal::SIGKILL)?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(
        answer(&pod) == "ready\n200",
        "without an agent: {:?}",
        answer(&pod)
    );
    let _agent = Agent::start(lab.places())?;
    lab.places().wait_enrolled("test/probe")?;

    sidecar.signal(Signal::SIGTERM)?;
    wait_for(&pod, "was refused")?;
    let _sidecar = part(1337, &["sidecar"])?;
    wait_for(&pod, "ready\n200")?;
    lab.release("probe")?;
    wait_for(&pod, "was not redirected")?;
    drop(app);
    Ok(())
}
