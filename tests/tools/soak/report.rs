//! What was done and what came of it, as tables.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    account::{Heading, Totals},
    chaos::{Agents, Events, Floods},
    inventory::Inventory,
};

fn number(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// One line, for those who wait.
pub fn progress(
    elapsed: Duration,
    connections: u64,
    failed: u64,
    agents: &Agents,
    events: &Events,
) {
    eprintln!(
        "{:4} s  {connections:8} connections  {:4} agents ended  {:4} takeovers  {:4} policies  {:4} sidecars  {:3} pods  {failed} failed",
        elapsed.as_secs(),
        agents.ended(),
        number(&agents.replaced),
        number(&events.flips),
        number(&events.restarts),
        number(&events.created),
    );
}

/// What happened.
pub fn events(agents: &Agents, events: &Events, floods: &Floods) {
    println!("events\n");
    for (what, count) in [
        ("agents killed (SIGKILL)", number(&agents.killed)),
        ("agents ended (SIGTERM)", number(&agents.terminated)),
        (
            "  of both, before all hooks were theirs",
            number(&agents.starting),
        ),
        (
            "takeovers: every link has another program",
            number(&agents.replaced),
        ),
        ("  of them by another build", number(&agents.upgraded)),
        (
            "  different connect4 programs attached",
            agents.programs() as u64,
        ),
        (
            "takeovers interrupted between two links",
            number(&agents.partly),
        ),
        ("policies changed", number(&events.flips)),
        ("sidecars killed and restarted", number(&events.restarts)),
        ("listener groups shrunk and grown", number(&events.shrinks)),
        ("pods created", number(&events.created)),
        ("pods destroyed", number(&events.destroyed)),
        ("floods, their process killed", number(&floods.small)),
        ("floods that used their pod's quota", number(&floods.large)),
        ("  SYNs to nowhere in all floods", number(&floods.begun)),
        (
            "  refused in them: the quota was used up",
            number(&floods.refused),
        ),
    ] {
        println!("{what:<45}{count:>9}");
    }
    for (which, start) in ["median", "longest"].into_iter().zip(agents.starts()) {
        let what = format!("start of an agent until it was ready, {which}");
        println!("{what:<45}{:>6.2} s", start.as_secs_f64());
    }
}

/// Connections by kind and heading, and how many of them are over IPv6.
pub fn connections(totals: &Totals, over_v6: u64) {
    println!("\nconnections\n");
    print!("{:<34}", "");
    for heading in Heading::ALL {
        print!("{:>15}", heading.title());
    }
    println!();
    let mut sums = [0; Heading::ALL.len()];
    for (kind, row) in totals {
        line(kind.title(), row);
        for (sum, count) in sums.iter_mut().zip(row) {
            *sum += count;
        }
    }
    line("all", &sums);
    println!("{:<34}{over_v6:>15}", "of them over IPv6");
}

fn line(title: &str, row: &[u64]) {
    print!("{title:<34}");
    for count in row {
        print!("{count:>15}");
    }
    println!();
}

/// Connections that hung for a while; those that were never made are failures as well.
pub fn hung((count, first): &(u64, Vec<String>)) {
    if *count > 0 {
        println!("\n{count} connections hung for a while, the first of them:");
    }
    for text in first {
        println!("\n{text}");
    }
}

/// Start and end.
pub fn inventory(start: &Inventory, end: &Inventory) {
    println!("\n{:<45}{:>9}{:>9}", "", "start", "end");
    for what in start.both(end) {
        println!("{what:<45}{:>9}{:>9}", start.count(what), end.count(what));
    }
}
