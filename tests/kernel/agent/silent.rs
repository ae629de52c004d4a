//! What the command line says while the agent does not answer, or may not be asked.

use std::{
    io::Read as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Places, binary, is},
    network::Lab,
    wait::eventually,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

/// Longer than any command waits for the agent.
const ANSWER: Duration = Duration::from_secs(10);

/// Runs a command; it must end in time.
fn text(places: &Places, words: &[&str]) -> Result<(Option<i32>, String, String)> {
    let start = Instant::now();
    let output = places.output(words)?;
    ensure!(start.elapsed() < ANSWER, "{words:?}: {:?}", start.elapsed());
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

kernel_test!(a_stopped_agent_does_not_hold_commands_up);
fn a_stopped_agent_does_not_hold_commands_up() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let ports = [("traffic.sidecar.istio.io/excludeOutboundPorts", "3306")];
    lab.write_pod("app", &pod, &ports)?;
    let agent = Agent::start(lab.places())?;
    let places = agent.places.clone();
    places.wait_enrolled("test/app")?;
    let file = places.socket.with_file_name("last-policies.json");
    eventually(ANSWER, || {
        ensure!(
            std::fs::read_to_string(&file).is_ok_and(|text| text.contains("3306")),
            "{}",
            places.log()
        );
        Ok(())
    })?;
    let before = text(&places, &["rules", "test/app"])?.1;
    let pid = Pid::from_raw(agent.pid() as i32);
    kill(pid, Signal::SIGSTOP)?;
    let held = while_stopped(&places, &before);
    kill(pid, Signal::SIGCONT)?;
    held?;
    drop(agent);
    // Without any agent the same.
    let (code, rules, said) = text(&places, &["rules", "test/app"])?;
    ensure!(code == Some(0) && rules == before, "{said}{rules}");
    let status = places.output(&["status", "-o", "json"])?;
    let status: Value = serde_json::from_slice(&status.stdout)?;
    ensure!(status["agent_state"] == "not_running", "{status}");
    let removed = text(&places, &["cleanup"])?.1;
    ensure!(
        removed.contains("last-policies.json") && removed.contains("test/app"),
        "{removed}"
    );
    Ok(())
}

kernel_test!(a_trace_ends_when_its_agent_hangs);
fn a_trace_ends_when_its_agent_hangs() -> Result<()> {
    let lab = Lab::new()?;
    let agent = Agent::start(lab.places())?;
    let mut command = agent.places.command(&["trace", "--duration", "60s"])?;
    let mut trace = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // The heading: it has begun.
    trace
        .stdout
        .as_mut()
        .context("its output")?
        .read_exact(&mut [0; 4])?;
    let pid = Pid::from_raw(agent.pid() as i32);
    kill(pid, Signal::SIGSTOP)?;
    let ended = trace.wait_with_output();
    kill(pid, Signal::SIGCONT)?;
    let ended = ended?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(
        ended.status.code() == Some(1) && said.contains("does not answer within"),
        "{ended:?}"
    );
    Ok(())
}

fn while_stopped(places: &Places, before: &str) -> Result<()> {
    let (code, status, _) = text(places, &["status"])?;
    ensure!(code == Some(1), "{status}");
    for part in ["does not answer", "1 enrolled, read from the pinned maps"] {
        ensure!(status.contains(part), "{part}: {status}");
    }
    let (code, pods, said) = text(places, &["pods"])?;
    ensure!(code == Some(0) && pods.contains("test/app"), "{said}{pods}");
    ensure!(said.contains("does not answer"), "{said}");
    let (code, rules, said) = text(places, &["rules", "test/app"])?;
    ensure!(code == Some(0) && rules == before, "{said}{rules}");
    ensure!(said.contains("no agent answers"), "{said}");
    let words = [
        "explain", "test/app", "outbound", "--uid", "1000", "--gid", "1000",
    ];
    let (code, explained, said) =
        text(places, &[&words[..], &["--dst", "10.0.0.1:3306"]].concat())?;
    ensure!(
        code == Some(0) && explained.contains("untouched"),
        "{said}{explained}"
    );
    let (code, _, said) = text(places, &["status", "--wait", "test/app", "--timeout", "1s"])?;
    ensure!(
        code == Some(1) && said.contains("does not answer"),
        "{said}"
    );
    Ok(())
}

kernel_test!(who_may_not_ask_learns_that);
fn who_may_not_ask_learns_that() -> Result<()> {
    let lab = Lab::new()?;
    let agent = Agent::start(lab.places())?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(binary()?)
        .args(["status", "-o", "json", "--bpffs"])
        .arg(&agent.places.bpffs)
        .arg("--socket")
        .arg(&agent.places.socket);
    let output = command.output()?;
    let status: Value =
        serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))?;
    ensure!(
        status["agent_state"] == "unknown" && status["pods"] == json!(null),
        "{status}"
    );
    ensure!(status["problems"].to_string().contains("root"), "{status}");
    Ok(())
}

kernel_test!(problems_decide_the_exit_code_of_check);
fn problems_decide_the_exit_code_of_check() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let agent = Agent::start(lab.places())?;
    let code = |words: &[&str]| Ok::<_, anyhow::Error>(agent.places.output(words)?.status.code());
    ensure!(code(&["status", "--check"])? == Some(0));
    // A container without the bpffs asks the same, as that of `helm test`.
    let mut elsewhere = lab.places().clone();
    elsewhere.bpffs = lab.dir().to_owned();
    let asked = elsewhere.output(&["status", "--check", "-o", "json"])?;
    let report: Value = serde_json::from_slice(&asked.stdout)?;
    ensure!(asked.status.success(), "{report}");
    let notes = report["notes"].to_string();
    ensure!(notes.contains("hooks are not shown"), "{report}");
    let ports = [("traffic.sidecar.istio.io/excludeOutboundPorts", "mysql")];
    lab.write_pod("app", &pod, &ports)?;
    agent.places.wait_pod("test/app", is("rejected", ""))?;
    ensure!(code(&["status", "--check"])? == Some(1));
    ensure!(code(&["status"])? == Some(0));
    Ok(())
}
