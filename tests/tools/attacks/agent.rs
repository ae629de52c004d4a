//! The attacks on the agent.

use std::{any::Any, time::Duration};

use anyhow::Result;

use crate::{
    objects,
    report::{Report, Seen},
    sockets, witness,
    world::{GREEDY, QUIET, World},
};

/// What an attack keeps up until it is dropped.
pub type Held = Box<dyn Any>;

/// An attack.
struct Attack {
    name: &'static str,
    /// Begins it.
    start: fn(&mut World) -> Result<Held>,
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "nothing",
        start: |_| Ok(Box::new(())),
    },
    Attack {
        name: "30 pods of 1.1 MB, not opted in, when the agent starts",
        start: objects::big_pods_listed,
    },
    Attack {
        name: "30 pods of 1.1 MB, of which two change each second",
        start: objects::big_pods_watched,
    },
    Attack {
        name: "24 pods with different lists of 30,000 ports and ranges, when the agent starts",
        start: objects::big_policies,
    },
    Attack {
        name: "a policy of 20,000 entries that changes every 10 ms",
        start: objects::restless_policy,
    },
    Attack {
        name: "an annotation with YAML aliases of aliases that changes every 10 ms",
        start: objects::restless_aliases,
    },
    Attack {
        name: "an annotation with 120,000 YAML values that changes every 10 ms",
        start: objects::restless_yaml,
    },
    Attack {
        name: "1,000 pods that do not exist here",
        start: objects::many_pods,
    },
    Attack {
        name: "15,000 sleeping processes in one pod",
        start: sockets::processes,
    },
    Attack {
        name: "600 silent connections to the metrics port",
        start: sockets::silent_metrics,
    },
    Attack {
        name: "64 clients that read metrics without a pause",
        start: sockets::busy_metrics,
    },
    Attack {
        name: "1,000 requests of CNI plugins for unknown pods",
        start: sockets::sandboxes,
    },
    Attack {
        name: "a connect to each of 10,000 listed ports",
        start: sockets::counters,
    },
    Attack {
        name: "12,000 connections of a pod whose sidecar hangs",
        start: sockets::handshakes,
    },
    Attack {
        name: "60,000 refused connections of one pod",
        start: sockets::refusals,
    },
    Attack {
        name: "the same while eight traces have no reader",
        start: sockets::unread_traces,
    },
    Attack {
        name: "12,000 connections of a neighbor to a healthy pod",
        start: sockets::neighbor,
    },
];

/// Before the others are looked at: an attack needs a moment to begin.
const BEGIN: Duration = Duration::from_millis(500);

/// The names, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    ATTACKS.iter().map(|attack| attack.name)
}

/// Runs those that are wanted, one after the other.
pub fn run(world: &mut World, is_wanted: &impl Fn(&str) -> bool, report: &mut Report) {
    for attack in ATTACKS.iter().filter(|attack| is_wanted(attack.name)) {
        let result = one(world, attack);
        report.add(attack.name, result);
        let cleaned = [GREEDY, QUIET].map(|namespace| world.clean(namespace));
        if let Some(Err(error)) = cleaned.into_iter().find(Result::is_err) {
            report.add("clean up", Err(error));
        }
        if world.agent().is_err()
            && let Err(error) = world.restart_agent()
        {
            report.add("start the agent again", Err(error));
        }
    }
}

fn one(world: &mut World, attack: &Attack) -> Result<Seen> {
    world.take_peak()?;
    let held = (attack.start)(world)?;
    std::thread::sleep(BEGIN);
    let seen = witness::observe(world, attack.name);
    drop(held);
    seen
}
