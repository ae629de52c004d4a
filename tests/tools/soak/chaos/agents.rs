//! Agents that are killed at random times after their start, and replaced by another build.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::AsFd as _,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use lab::product::sys;
use lab::{
    agent::{Agent, Extra, Places},
    command::run_words,
    wait::eventually,
};
use nix::sys::signal::Signal;
use parking_lot::Mutex;

use super::{between, more};
use crate::environment::Environment;

/// An agent is killed within this time after its start, mostly before it is ready.
const EARLY: u64 = 3000;
/// Of so many agents one is not killed until it is ready, and a while longer.
const ONE_OF: u32 = 2;
const READY: Duration = Duration::from_secs(30);

/// What became of agents.
#[derive(Debug, Default)]
pub struct Agents {
    /// Ended by SIGKILL.
    pub killed: AtomicU64,
    /// Ended by SIGTERM.
    pub terminated: AtomicU64,
    /// Of both, those that had not replaced all programs yet.
    pub starting: AtomicU64,
    /// Takeovers in which every link has got another program.
    pub replaced: AtomicU64,
    /// Of those, from one build to another.
    pub upgraded: AtomicU64,
    /// Takeovers that were interrupted when some of the links had got one.
    pub partly: AtomicU64,
    /// How long those were starting that were not killed meanwhile, until they were ready.
    starts: Mutex<Vec<Duration>>,
    /// Tags of the sockops programs that were attached: equal programs have equal tags.
    tags: Mutex<BTreeSet<String>>,
    /// The process of the agent that remains at the end.
    survivor: Mutex<Option<u32>>,
}

/// Program ids by link.
pub type Programs = BTreeMap<String, u32>;

/// The programs that the pinned hooks lead to.
pub fn programs(places: &Places) -> Result<Programs> {
    let dir = places.pins().join("links");
    let mut programs = Programs::new();
    for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Ok(link) = sys::open_pin(&entry.path()) {
            let info = sys::link_info(link.as_fd()).context("query a link")?;
            programs.insert(name, info.prog_id);
        }
    }
    Ok(programs)
}

/// What the kernel made of a program's instructions.
fn tag(program: Option<u32>) -> Result<String> {
    let id = program.context("no connect4 program")?.to_string();
    let shown = run_words(&["bpftool", "-j", "prog", "show", "id", &id])?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    let tag = shown["tag"].as_str().context("a program without a tag")?;
    Ok(tag.to_owned())
}

/// What the agents are.
#[derive(Debug)]
pub struct Builds {
    /// For upgrades from one to the other.
    pub binaries: [PathBuf; 2],
    /// Whether they accelerate connections.
    pub accelerate: bool,
}

/// Starts one.
pub fn start(places: &Places, builds: &Builds, which: usize) -> Result<Agent> {
    const ACCELERATE: &[&str] = &["--accelerate"];
    let extra = Extra {
        binary: Some(&builds.binaries[which]),
        arguments: if builds.accelerate { ACCELERATE } else { &[] },
        ..Extra::default()
    };
    Agent::spawn_with(places, &extra)
}

/// Waits until an agent reports that it is ready.
pub fn wait_ready(places: &Places, agent: &Agent) -> Result<()> {
    eventually(READY, || {
        ensure!(
            is_ready(places, agent.pid()),
            "an agent is not ready after {READY:?}:\n{}",
            tail(places)
        );
        Ok(())
    })
}

fn is_ready(places: &Places, pid: u32) -> bool {
    let status = places.json(&["status", "-o", "json"]);
    status.is_ok_and(|status| status["agent"]["ready"] == true && status["agent"]["pid"] == pid)
}

/// The end of the agents' log.
pub fn tail(places: &Places) -> String {
    const LINES: usize = 30;
    let log = places.log();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

impl Agents {
    /// Continues until chaos ends, then leaves one agent running until `over`.
    pub fn run(
        &self,
        environment: &Environment,
        first: Agent,
        builds: &Builds,
        mut rng: Rng,
        over: &dyn Fn() -> bool,
    ) -> Result<()> {
        let places = &environment.places;
        let mut agent = first;
        let mut before = programs(places)?;
        // The build whose programs are attached to all links, and the build that runs.
        let mut attached = 0;
        let mut build = 0;
        // Not known of the first one.
        let mut spawned: Option<Instant> = None;
        let continues = || environment.continues() && !environment.calm.load(Ordering::Relaxed);
        while continues() {
            let patient = spawned.is_none() || rng.u32(..ONE_OF) == 0;
            if patient {
                wait_ready(places, &agent)?;
                if let Some(spawned) = spawned {
                    self.starts.lock().push(spawned.elapsed());
                }
                environment.pause(between(&mut rng, 0, 3000));
            } else {
                environment.pause(between(&mut rng, 0, EARLY));
            }
            if agent.has_ended()? {
                bail!("an agent ended by itself:\n{}", tail(places));
            }
            let term = rng.u32(..10) < 3;
            // Its progress is not queried: the query would wait for it.
            let (signal, count) = if term {
                (Signal::SIGTERM, &self.terminated)
            } else {
                (Signal::SIGKILL, &self.killed)
            };
            agent.end(signal)?;
            more(count);
            let after = programs(places)?;
            let changed = after
                .iter()
                .filter(|(link, program)| before.get(*link) != Some(program))
                .count();
            if changed == after.len() {
                more(&self.replaced);
                if attached != build {
                    more(&self.upgraded);
                }
                attached = build;
                let tag = tag(after.get("connect4").copied())?;
                self.tags.lock().insert(tag);
            } else {
                more(&self.starting);
                if changed > 0 {
                    more(&self.partly);
                }
            }
            before = after;
            build = rng.usize(..builds.binaries.len());
            spawned = Some(Instant::now());
            agent = start(places, builds, build)?;
        }
        wait_ready(places, &agent)?;
        *self.survivor.lock() = Some(agent.pid());
        while !over() {
            thread::sleep(Duration::from_millis(20));
        }
        agent.end(Signal::SIGTERM)?;
        Ok(())
    }

    /// The process of the agent that remains when chaos has ended.
    pub fn survivor(&self) -> Option<u32> {
        *self.survivor.lock()
    }

    /// How many different connect4 programs were attached.
    pub fn programs(&self) -> usize {
        self.tags.lock().len()
    }

    /// The median and the longest of the starts.
    pub fn starts(&self) -> [Duration; 2] {
        let mut starts = self.starts.lock().clone();
        starts.sort();
        let median = starts.get(starts.len() / 2);
        [median, starts.last()].map(|it| it.copied().unwrap_or_default())
    }

    /// All that were ended.
    pub fn ended(&self) -> u64 {
        self.killed.load(Ordering::Relaxed) + self.terminated.load(Ordering::Relaxed)
    }
}
