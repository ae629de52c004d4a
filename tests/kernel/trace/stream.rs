//! `sidetrack trace` shows every connection once, costs nothing without a reader, and says what it missed.

use std::{
    process::{Child, Stdio},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::die_with_parent,
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::until,
};
use serde_json::Value;

use super::{app, is_traced};
use crate::fixture::{POD, PodFixture, at};

/// Connections of one test.
const MANY: usize = 200;
/// For the agent to begin to read, and for the last events to arrive.
const BEGIN: Duration = Duration::from_millis(700);

/// Starts a trace that prints JSON.
fn start(fixture: &PodFixture, words: &[&str]) -> Result<Child> {
    let words = [&["trace", "-o", "json"][..], words].concat();
    let mut command = fixture.lab.places().command(&words)?;
    die_with_parent(&mut command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().context("start a trace")?;
    sleep(BEGIN);
    Ok(child)
}

/// Its lines, once it has ended, and its summary.
fn end(child: Child) -> Result<(Vec<Value>, String)> {
    let output = child.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().map(serde_json::from_str);
    let lines = lines.collect::<Result<_, _>>().context(text.clone())?;
    Ok((lines, String::from_utf8(output.stderr)?))
}

fn fixture() -> Result<PodFixture> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    Ok(fixture)
}

kernel_test!(a_trace_has_each_connection_once);
fn a_trace_has_each_connection_once() -> Result<()> {
    let fixture = fixture()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let all = start(&fixture, &["--duration", "4s"])?;
    let inbound = start(&fixture, &["--duration", "4s", "--direction", "inbound"])?;
    let none = start(&fixture, &["--duration", "4s", "test/other"])?;
    for result in fixture
        .client
        .dial_all(vec![Dial::new(&APP, at(VIP, 80)); MANY])?
    {
        ensure!(result.is_ok(), "{result:?}");
    }
    for _ in 0..3 {
        let dial = Dial::new(&ROOT, at(POD[0], 80));
        ensure!(fixture.outside.dial(dial)?.is_ok());
    }
    let (lines, summary) = end(all)?;
    let is = |line: &Value, direction: &str, verdict: &str, rule: &str| {
        let event = &line["event"];
        event["direction"] == direction
            && event["verdict"] == verdict
            && event["rule"] == rule
            && event["pod"] == "test/app"
    };
    let count = |direction: &str, verdict: &str, rule: &str| {
        let of = |line: &&Value| is(line, direction, verdict, rule);
        lines.iter().filter(of).count()
    };
    ensure!(
        count("outbound", "redirect", "out-all") == MANY,
        "{summary}"
    );
    ensure!(count("inbound", "redirect", "in-all") == 3, "{summary}");
    ensure!(summary.contains("none missing"), "{summary}");
    let first = &lines[0]["event"];
    ensure!(first["destination"] == format!("{VIP}:80"), "{first}");
    ensure!(first["process"]["uid"] == APP.uid, "{first}");
    let connections = app(&fixture)?["connections"].clone();
    ensure!(connections["outbound_redirected"] == MANY, "{connections}");
    ensure!(connections["inbound_redirected"] == 3, "{connections}");
    let (lines, _) = end(inbound)?;
    ensure!(lines.len() == 3, "{lines:?}");
    let (lines, _) = end(none)?;
    ensure!(lines.is_empty(), "{lines:?}");
    Ok(())
}

kernel_test!(a_failure_has_the_process_of_its_connect);
fn a_failure_has_the_process_of_its_connect() -> Result<()> {
    let fixture = fixture()?;
    let trace = start(&fixture, &["--refused", "--count", "1", "--duration", "5s"])?;
    ensure!(fixture.dial(at(VIP, 80))?.is_err());
    let (lines, summary) = end(trace)?;
    ensure!(lines.len() == 1, "{lines:?} {summary}");
    let event = &lines[0]["event"];
    ensure!(event["rule"] == "sidecar-refused", "{event}");
    ensure!(event["process"]["uid"] == APP.uid, "{event}");
    ensure!(event["destination"] == format!("{VIP}:80"), "{event}");
    Ok(())
}

kernel_test!(events_end_with_the_last_trace);
fn events_end_with_the_last_trace() -> Result<()> {
    let fixture = fixture()?;
    ensure!(!is_traced(&fixture)?, "no trace runs");
    let mut traces: Vec<Child> = (0..8)
        .map(|_| start(&fixture, &[]))
        .collect::<Result<_>>()?;
    ensure!(is_traced(&fixture)?, "somebody traces");
    let ninth = fixture.lab.places().output(&["trace"])?;
    let said = String::from_utf8_lossy(&ninth.stderr).into_owned();
    ensure!(
        !ninth.status.success() && said.contains("8 others trace"),
        "{said}"
    );
    for trace in &mut traces {
        trace.kill()?;
        trace.wait()?;
    }
    until(Duration::from_secs(5), "still traced", || {
        Ok(!is_traced(&fixture)?)
    })
    .map(drop)
}
