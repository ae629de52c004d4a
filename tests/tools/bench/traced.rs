//! What a trace of everything costs under load, and that nobody else pays for it: one connection after the other, in
//! turns without a trace, with one, and without one again.

use std::{fs::File, io::Read as _, path::PathBuf, process::Child, thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{agent::Places, command::die_with_parent, wait::eventually};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::{
    load::churn_of,
    pods::{Environment, Pod, SIDETRACK},
    report::Figure,
    worker::{Answer, median},
};

/// Seconds of a turn.
const TURN: u64 = 1;
/// For the agent to ask for events, and to read the last ones.
const SETTLE: Duration = Duration::from_millis(700);
/// For the programs to stop sending after the last client.
const STOPPED: Duration = Duration::from_secs(5);

/// connect(2) of the same pod, with and without a trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traced {
    /// Turns of each kind.
    pub turns: u32,
    /// Connections a second without a trace, with one, and without one again: medians.
    pub rates: [u64; 3],
    /// Failed ones in all.
    pub failed: u64,
    /// connect(2) without a trace.
    pub untraced: Figure,
    /// With one, to the turn before it.
    pub traced: Figure,
    /// Without one again, to the first: what two equal turns differ by.
    pub again: Figure,
    /// Connections of the turns with a trace.
    pub connections: u64,
    /// Events that the traces have shown of them.
    pub events: u64,
    /// Those that they said are missing.
    pub missing: u64,
}

/// Measures it.
pub fn measure(environment: &Environment, turns: u32) -> Result<Traced> {
    let pod = environment.pods.iter().find(|pod| pod.name == SIDETRACK);
    let pod = pod.context("a pod with the default policy")?;
    let places = environment.places();
    let mut all: [Vec<Answer>; 3] = Default::default();
    let (mut events, mut missing) = (0, 0);
    for turn in 0..=turns {
        let before = churn_of(pod, TURN)?;
        let trace = Trace::start(environment, pod)?;
        let during = churn_of(pod, TURN)?;
        let (shown, lost) = trace.end()?;
        wait_untraced(places)?;
        let after = churn_of(pod, TURN)?;
        // The first one does not count: caches, and the first use of everything.
        if turn > 0 {
            events += shown;
            missing += lost;
            for (all, answer) in all.iter_mut().zip([before, during, after]) {
                all.push(answer);
            }
        }
    }
    let [before, during, after] = &all;
    let rate = |answers: &[Answer]| {
        let mut counts: Vec<u64> = answers.iter().map(|answer| answer.count / TURN).collect();
        median(&mut counts)
    };
    let p50 = |answers: &[Answer]| answers.iter().map(|answer| answer.p50).collect::<Vec<_>>();
    let figure = |answers| Figure::of(&p50(answers), &p50(before));
    Ok(Traced {
        turns,
        rates: all.each_ref().map(|answers| rate(answers)),
        failed: all.iter().flatten().map(|answer| answer.failed).sum(),
        untraced: figure(before),
        traced: figure(during),
        again: figure(after),
        connections: during
            .iter()
            .map(|answer| answer.count + answer.failed)
            .sum(),
        events,
        missing,
    })
}

/// Until when events are wanted, as the kernel programs see it; 0 if nobody traces.
fn traced_until(places: &Places) -> Result<u64> {
    let rows = places.map("TRACING")?;
    rows[0]["formatted"]["value"]
        .as_u64()
        .context("the row of TRACING")
}

fn wait_untraced(places: &Places) -> Result<()> {
    eventually(STOPPED, || {
        ensure!(traced_until(places)? == 0, "somebody else traces");
        Ok(())
    })
}

/// A trace of everything, as JSON into a file.
struct Trace {
    child: Child,
    file: PathBuf,
}

impl Trace {
    fn start(environment: &Environment, pod: &Pod) -> Result<Self> {
        let file = environment.dir().join("trace");
        let mut command =
            environment
                .places()
                .command(&["trace", &pod.full_name(), "-o", "json"])?;
        command
            .stdout(File::create(&file)?)
            .stderr(std::process::Stdio::null());
        let child = die_with_parent(&mut command)
            .spawn()
            .context("start a trace")?;
        sleep(SETTLE);
        ensure!(
            traced_until(environment.places())? != 0,
            "the trace has not begun"
        );
        Ok(Self { child, file })
    }

    /// Ends it; how many events it has shown, and how many it says are missing.
    fn end(mut self) -> Result<(u64, u64)> {
        sleep(SETTLE);
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT)?;
        self.child.wait()?;
        let mut text = String::new();
        File::open(&self.file)?.read_to_string(&mut text)?;
        let (mut shown, mut lost) = (0, 0);
        for line in text.lines() {
            match line
                .strip_prefix("{\"lost\":")
                .and_then(|rest| rest.strip_suffix('}'))
            {
                Some(count) => lost += count.parse::<u64>().with_context(|| line.to_owned())?,
                None => shown += 1,
            }
        }
        Ok((shown, lost))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
