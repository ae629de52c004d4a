//! What a trace of everything costs under load, and that there is no cost without one: one connection after the other, in
//! turns without a trace, with one, and without one again.

use std::{thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{agent::Places, trace::Trace, wait::eventually};
use serde::{Deserialize, Serialize};

use crate::{
    load::churn_of,
    pods::{Environment, Pod, SIDETRACK},
    report::Figure,
    worker::{Answer, median},
};

/// Seconds of a turn.
const TURN: u64 = 1;
/// For the agent to read the last events.
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
        let trace = trace(environment, pod)?;
        let during = churn_of(pod, TURN)?;
        sleep(SETTLE);
        let shown = trace.end()?;
        wait_untraced(places)?;
        let after = churn_of(pod, TURN)?;
        // The first one does not count: caches, and the first use of everything.
        if turn > 0 {
            events += shown.events();
            missing += shown.lost;
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

/// Until when events are wanted, as the kernel programs see it; 0 without a trace.
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

/// A trace of everything.
fn trace(environment: &Environment, pod: &Pod) -> Result<Trace> {
    let places = environment.places();
    let trace = Trace::start(places, &[&pod.full_name()], environment.dir())?;
    ensure!(traced_until(places)? != 0, "the trace has not begun");
    Ok(trace)
}
