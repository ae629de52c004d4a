//! A trace that is not read fast enough says how many connections it has missed: what it has shown and what it says
//! is missing are all there were.

use std::{
    fs::{self, File},
    process::Child,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::die_with_parent,
    node::VIP,
    protocol::{APP, Dial},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::fixture::{PodFixture, at};

/// Connections that are refused: two events each, together more than a client may be behind.
const REFUSED: usize = 8_000;
/// For the agent to begin to read.
const BEGIN: Duration = Duration::from_millis(700);
/// For everything to be shown.
const SHOWN: Duration = Duration::from_secs(20);

/// A process that is ended in any case.
struct Ended(Child);

impl Ended {
    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.0.id().cast_signed()), signal)?)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many events the lines have, and how many they say are missing.
fn counted(text: &str) -> Result<(usize, usize)> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let (mut events, mut missing) = (0, 0);
    for line in complete.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        match line["lost"].as_u64() {
            Some(count) => missing += count as usize,
            None => events += 1,
        }
    }
    Ok((events, missing))
}

kernel_test!(a_trace_that_is_behind_says_what_it_missed);
fn a_trace_that_is_behind_says_what_it_missed() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let file = fixture.lab.dir().join("trace");
    let mut command = fixture.lab.places().command(&["trace", "-o", "json"])?;
    command.stdout(File::create(&file)?);
    let trace = Ended(
        die_with_parent(&mut command)
            .spawn()
            .context("start a trace")?,
    );
    sleep(BEGIN);
    trace.signal(Signal::SIGSTOP)?;
    let begun = Instant::now();
    for result in fixture
        .client
        .dial_all(vec![Dial::new(&APP, at(VIP, 80)); REFUSED])?
    {
        ensure!(result.is_err(), "{result:?}");
    }
    let took = begun.elapsed();
    trace.signal(Signal::SIGCONT)?;
    let begun = Instant::now();
    let (mut events, mut missing) = (0, 0);
    while events + missing < 2 * REFUSED && begun.elapsed() < SHOWN {
        sleep(Duration::from_millis(100));
        (events, missing) = counted(&fs::read_to_string(&file)?)?;
    }
    ensure!(
        missing > 0,
        "{events} events in {took:?}, and none is missing"
    );
    ensure!(
        events + missing == 2 * REFUSED,
        "{events} events and {missing} missing ones, of {REFUSED} connections in {took:?}"
    );
    Ok(())
}
