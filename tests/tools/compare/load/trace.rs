//! What `sidetrack trace` shows of the load.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::PathBuf,
    process::Child,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lab::command::die_with_parent;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::pair::PodPair;

/// For the agent to begin to read.
const BEGIN: Duration = Duration::from_millis(700);
/// For the last events to arrive.
const END: Duration = Duration::from_secs(3);
/// For events that should not be there.
const MORE: Duration = Duration::from_millis(100);

/// A trace that writes into a file: a pipe that nobody reads would stop it.
pub(super) struct Trace {
    child: Child,
    file: PathBuf,
}

/// What it has shown.
#[derive(Debug, Default)]
pub(super) struct Traced {
    /// By the rule's name.
    pub(super) by_rule: BTreeMap<String, u64>,
    /// What it says it has not shown.
    pub(super) lost: u64,
}

impl Trace {
    /// Starts one of the pod.
    pub(super) fn start(pair: &PodPair) -> Result<Self> {
        let file = pair.ours.dir().join("trace");
        let mut command = pair
            .places()
            .command(&["trace", "test/app", "-o", "json"])?;
        command
            .stdout(File::create(&file)?)
            .stderr(File::create(pair.ours.dir().join("trace.summary"))?);
        let child = die_with_parent(&mut command)
            .spawn()
            .context("start a trace")?;
        sleep(BEGIN);
        Ok(Self { child, file })
    }

    /// Ends it once it has shown so many events.
    pub(super) fn end(mut self, wanted: u64) -> Result<Traced> {
        let begun = Instant::now();
        while begun.elapsed() < END {
            let traced = self.shown()?;
            if traced.by_rule.values().sum::<u64>() + traced.lost >= wanted {
                break;
            }
            sleep(MORE);
        }
        sleep(MORE);
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT)?;
        self.child.wait()?;
        self.shown()
    }

    /// The lines that are complete.
    fn shown(&self) -> Result<Traced> {
        let text = fs::read_to_string(&self.file)?;
        let end = text.rfind('\n').map_or(0, |at| at + 1);
        let mut traced = Traced::default();
        for line in text[..end].lines() {
            let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            if let Some(lost) = line["lost"].as_u64() {
                traced.lost += lost;
                continue;
            }
            let rule = line["event"]["rule"].as_str().context("an event's rule")?;
            *traced.by_rule.entry(rule.to_owned()).or_default() += 1;
        }
        Ok(traced)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
