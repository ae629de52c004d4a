//! A trace that runs beside a test.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{agent::Places, command::Process};

/// For the agent to begin to read.
const BEGIN: Duration = Duration::from_millis(700);

/// Between two looks at what it has shown.
const MORE: Duration = Duration::from_millis(100);

/// A trace that writes into a file: a pipe without a reader would stop it.
#[derive(Debug)]
pub struct Trace {
    process: Process,
    file: PathBuf,
}

/// What a trace has shown.
#[derive(Debug, Default)]
pub struct Shown {
    /// Events by the name of their rule.
    pub by_rule: BTreeMap<String, u64>,
    /// Events it says it has not shown.
    pub lost: u64,
}

impl Shown {
    /// Events that were shown.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.by_rule.values().sum()
    }

    /// Events in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.events() + self.lost
    }
}

impl Trace {
    /// Starts one with these arguments. Its file is in a directory that is removed after the test.
    pub fn start(places: &Places, arguments: &[&str], dir: &Path) -> Result<Self> {
        let file = dir.join("trace");
        let mut command = places.command(&[&["trace", "-o", "json"], arguments].concat())?;
        command.stdout(File::create(&file)?).stderr(Stdio::null());
        let process = Process::start(&mut command)?;
        sleep(BEGIN);
        Ok(Self { process, file })
    }

    /// Stops it for a while, or lets it continue.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// What it has shown so far, in lines that are complete.
    pub fn shown(&self) -> Result<Shown> {
        let text = fs::read_to_string(&self.file)?;
        let end = text.rfind('\n').map_or(0, |at| at + 1);
        let mut shown = Shown::default();
        for line in text[..end].lines() {
            let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            if let Some(lost) = line["lost"].as_u64() {
                shown.lost += lost;
                continue;
            }
            let rule = line["event"]["rule"].as_str().context("an event's rule")?;
            *shown.by_rule.entry(rule.to_owned()).or_default() += 1;
        }
        Ok(shown)
    }

    /// What it has shown when that and what it has lost are so many events, or after the timeout.
    pub fn wait(&self, wanted: u64, timeout: Duration) -> Result<Shown> {
        let start = Instant::now();
        loop {
            let shown = self.shown()?;
            if shown.total() >= wanted || start.elapsed() > timeout {
                return Ok(shown);
            }
            sleep(MORE);
        }
    }

    /// Ends it; all that it has shown.
    pub fn end(mut self) -> Result<Shown> {
        self.signal(Signal::SIGINT)?;
        self.process.wait()?;
        self.shown()
    }
}
