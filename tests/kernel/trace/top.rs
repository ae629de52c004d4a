//! `sidetrack top`: rates of real connections, and the live view on a terminal.

use std::{
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{
    agent::WAIT_TIMEOUT,
    command::die_with_parent,
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
    terminal::Terminal,
    wait::until,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{app, is_traced};
use crate::fixture::{POD, PodFixture, at};

fn fixture() -> Result<PodFixture> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    Ok(fixture)
}

/// What `top --once` says of the pod, and the seconds between its readings.
fn once(fixture: &PodFixture, words: &[&str]) -> Result<(Value, f64)> {
    let words = [&["top", "--once", "-o", "json"][..], words].concat();
    let mut report = fixture.lab.places().json(&words)?;
    let seconds = report["seconds"].as_f64().context("two readings")?;
    Ok((report["pods"][0].take(), seconds))
}

/// How many connections a rate stands for.
fn number(pod: &Value, of: &str, seconds: f64) -> Result<f64> {
    let rate = &pod["per_second"][of];
    let rate = rate.as_f64().with_context(|| format!("{of}: {pod}"))?;
    Ok(rate * seconds)
}

kernel_test!(top_counts_each_connection_between_its_readings);
fn top_counts_each_connection_between_its_readings() -> Result<()> {
    let fixture = fixture()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    // Connections of before are in no rate.
    ensure!(fixture.dial(at(VIP, 80))?.is_ok());
    // Where the machine is so slow that the first reading comes after connections, less is counted, never more.
    for _ in 0..3 {
        let (found, expected, report) = count_some(&fixture)?;
        for (found, expected) in found.iter().zip(expected) {
            ensure!(*found < expected + 0.01, "{found} of {expected}: {report}");
        }
        let is_all = |(found, expected): (&f64, f64)| (found - expected).abs() < 0.01;
        if found.iter().zip(expected).all(is_all) {
            ensure!(report["pods"][0]["sidecar"] == "up", "{report}");
            return Ok(());
        }
        eprintln!("{found:?} of {expected:?} connections came between the readings");
    }
    bail!("connections are missing each time")
}

/// Makes connections between two readings. The numbers that the rates stand for, and the true ones.
fn count_some(fixture: &PodFixture) -> Result<([f64; 4], [f64; 4], Value)> {
    const OUT: usize = 120;
    const IN: usize = 30;
    let words = ["top", "--once", "-o", "json", "--interval", "6s"];
    let mut command = fixture.lab.places().command(&words)?;
    die_with_parent(&mut command).stdout(Stdio::piped());
    let child = command.spawn()?;
    // After the first reading, and long before the second.
    sleep(Duration::from_secs(2));
    for (actor, dial, count) in [
        (&fixture.client, Dial::new(&APP, at(VIP, 80)), OUT),
        (&fixture.outside, Dial::new(&ROOT, at(POD[0], 80)), IN),
    ] {
        for result in actor.dial_all(vec![dial; count])? {
            ensure!(result.is_ok(), "{result:?}");
        }
    }
    let output = child.wait_with_output()?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let seconds = report["seconds"].as_f64().context("two readings")?;
    ensure!(seconds >= 6.0, "{report}");
    let pod = &report["pods"][0];
    let of = |of| number(pod, of, seconds);
    let found = [
        of("outbound_redirected")?,
        of("inbound_redirected")?,
        of("refused")?,
        of("udp")?,
    ];
    ensure!(
        pod["connections"] == app(fixture)?["connections"],
        "{report}"
    );
    Ok((found, [OUT as f64, IN as f64, 0.0, 0.0], report))
}

kernel_test!(top_measures_a_rate_while_connections_continue);
fn top_measures_a_rate_while_connections_continue() -> Result<()> {
    let fixture = fixture()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let stop = AtomicBool::new(false);
    let total = || -> Result<u64> {
        let total = &app(&fixture)?["connections"]["outbound_redirected"];
        total.as_u64().context("a count")
    };
    let (before, begun) = (total()?, Instant::now());
    let client = fixture.pod.actor()?;
    let (measured, seconds) = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let dials = vec![Dial::new(&APP, at(VIP, 80)); 5];
                if client.dial_all(dials).is_err() {
                    return;
                }
                sleep(Duration::from_millis(50));
            }
        });
        let measured = once(&fixture, &["--interval", "3s"]);
        stop.store(true, Ordering::Relaxed);
        measured
    })?;
    // The readings lie between these two, so there cannot be more connections; and some there are.
    let all = (total()? - before) as f64;
    let found = number(&measured, "outbound_redirected", seconds)?;
    ensure!(
        found > 0.0 && found <= all + 0.01,
        "{found} of {all}: {measured}"
    );
    ensure!(seconds <= begun.elapsed().as_secs_f64(), "{seconds}");
    Ok(())
}

kernel_test!(top_works_without_an_agent_and_says_so);
fn top_works_without_an_agent_and_says_so() -> Result<()> {
    let PodFixture {
        agent,
        lab,
        pod,
        client,
        outside,
    } = fixture()?;
    drop(agent);
    let places = lab.places();
    let output = places.output(&["top", "--once", "--interval", "100ms"])?;
    let (table, said) = (
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    );
    ensure!(
        output.status.success() && said.contains("no agent answers"),
        "{said}"
    );
    ensure!(
        table.starts_with("POD  ") && table.contains("test/app"),
        "{table}"
    );
    let other = places.output(&["top", "--once", "--interval", "100ms", "-n", "other"])?;
    ensure!(
        other.stdout.starts_with(b"POD") && !String::from_utf8(other.stdout)?.contains("test/app")
    );
    // No terminal.
    let output = places.output(&["top"])?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(
        output.status.code() == Some(1) && said.contains("pass --once"),
        "{said}"
    );
    drop((client, outside, pod));
    Ok(())
}

kernel_test!(the_live_view_shows_pods_rules_and_a_trace);
fn the_live_view_shows_pods_rules_and_a_trace() -> Result<()> {
    let fixture = fixture()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let mut command = fixture
        .lab
        .places()
        .command(&["top", "--interval", "300ms"])?;
    command.env("NODE_NAME", "worker-1");
    let mut terminal = Terminal::start(&command)?;
    let shown = terminal.wait(|text| text.contains("test/app") && text.contains(" up "))?;
    ensure!(
        shown.starts_with("sidetrack top  worker-1  agent "),
        "{shown}"
    );
    ensure!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    ensure!(
        terminal.screen().alternate_screen(),
        "the view has another screen"
    );
    terminal.keys("r")?;
    terminal.wait(|text| text.contains("rules of test/app") && text.contains("ISTIO_OUTPUT"))?;
    terminal.keys("qt")?;
    terminal.wait(|text| text.contains("trace of test/app") && text.contains("0 events"))?;
    // The view is there before its trace is: a connection of before would not be seen.
    until(WAIT_TIMEOUT, "no trace runs", || is_traced(&fixture))?;
    ensure!(fixture.dial(at(VIP, 80))?.is_ok());
    terminal.wait(|text| text.contains("1 redirect; none missing"))?;
    // The destination is beyond the right margin, because the name of the process is long.
    terminal.keys("\x1b[C\x1b[C\x1b[C")?;
    terminal.wait(|text| text.contains(&format!("{VIP}:80")))?;
    terminal.keys("\x1b")?;
    terminal.wait(|text| text.contains("SIDECAR"))?;
    terminal.resize(30, 130)?;
    terminal.wait(|text| text.contains("UNTOUCHED/S"))?;
    terminal.keys("q")?;
    ensure!(terminal.wait_end()? == Some(0), "{}", terminal.text());
    terminal.wait_given_back()?;
    Ok(())
}

kernel_test!(the_live_view_outlives_its_agent);
fn the_live_view_outlives_its_agent() -> Result<()> {
    let fixture = fixture()?;
    let mut command = fixture
        .lab
        .places()
        .command(&["top", "--interval", "300ms"])?;
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(&command)?;
    terminal.wait(|text| text.contains("test/app"))?;
    let screen = terminal.screen();
    let colored = |line, column| {
        let cell = screen.cell(line, column);
        cell.is_some_and(|cell| cell.fgcolor() != vt100::Color::Default)
    };
    ensure!(!(0..24).any(|line| (0..80).any(|column| colored(line, column))));
    let agent = Pid::from_raw(fixture.agent.pid() as i32);
    kill(agent, Signal::SIGSTOP)?;
    let shown = terminal.wait(|text| text.contains("no agent since "));
    let shown = shown.and_then(|shown| {
        ensure!(shown.contains("from the pinned maps"), "{shown}");
        ensure!(shown.contains("test/app"), "{shown}");
        // Keys work meanwhile.
        terminal.keys("?")?;
        terminal.wait(|text| text.contains("Columns"))
    });
    kill(agent, Signal::SIGCONT)?;
    shown?;
    terminal.keys("q")?;
    terminal.wait(|text| text.contains("test/app") && !text.contains("no agent since"))?;
    terminal.keys("\x03")?;
    ensure!(terminal.wait_end()? == Some(0), "{}", terminal.text());
    terminal.wait_given_back()?;
    Ok(())
}
