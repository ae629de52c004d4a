//! Random sequences of events against the reconciler, with a node in memory.
//!
//! `SIDETRACK_MODEL_SEED` and `SIDETRACK_MODEL_COUNT` change the first seed and the number of
//! sequences. A failure prints its seed and the shortest list of events found that fails.

mod checks;
mod cni;
mod events;
mod expect;
mod losses;
mod node;
mod ops;
mod pace;
mod pods;
mod published;
mod records;
mod repairs;
mod retries;
mod rows;
mod run;
mod sabotage;
mod steps;
mod tables;
mod world;

use events::Event;
use node::Sabotage;
use run::Run;

const SEQUENCES: u64 = 10_000;

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    }
}

/// The events of a seed; pods of even seeds come from the API server.
fn events_of(seed: u64) -> Vec<Event> {
    events::generate(&mut fastrand::Rng::with_seed(seed))
}

/// Violated invariants of a sequence.
fn violations(seed: u64, events: &[Event], sabotage: Sabotage) -> Vec<String> {
    let mut run = Run::new(seed.is_multiple_of(2), sabotage);
    for event in events {
        run.happen(*event);
        if !run.world.borrow().violations.is_empty() {
            break;
        }
    }
    if run.world.borrow().violations.is_empty() {
        run.finish();
    }
    std::mem::take(&mut run.world.borrow_mut().violations)
}

/// Leaves out events as long as the rest still fails.
fn shrink(seed: u64, mut events: Vec<Event>) -> Vec<Event> {
    let mut size = events.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at + size <= events.len() {
            let mut fewer = events.clone();
            fewer.drain(at..at + size);
            if violations(seed, &fewer, Sabotage::None).is_empty() {
                at += size;
            } else {
                events = fewer;
            }
        }
        size /= 2;
    }
    events
}

#[test]
fn random_sequences_converge() {
    let first = number("SIDETRACK_MODEL_SEED", 0);
    let count = number("SIDETRACK_MODEL_COUNT", SEQUENCES);
    let half = |part: u64| {
        for seed in (first..first + count).filter(|seed| seed / 2 % 2 == part) {
            let events = events_of(seed);
            if violations(seed, &events, Sabotage::None).is_empty() {
                continue;
            }
            let events = shrink(seed, events);
            let all = violations(seed, &events, Sabotage::None);
            let lines: Vec<String> = events.iter().map(|it| format!("  {it:?}")).collect();
            panic!(
                "seed {seed}: {all:#?}\nafter {} events:\n{}",
                events.len(),
                lines.join("\n")
            );
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| half(0));
        half(1);
    });
}
