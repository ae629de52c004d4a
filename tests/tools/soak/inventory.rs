//! What there is at the start and at the end: map rows, pins, programs, the agent's memory and
//! descriptors.

use std::{collections::BTreeMap, fs, path::Path, thread, time::Duration};

use anyhow::{Context as _, Result};
use lab::agent::Places;
use lab::product::{Maps, Pins};

/// The row of the table that may be larger at the end by [`MEMORY_SLACK`].
const MEMORY: &str = "agent: memory of its own, KiB";
/// Allocators keep what they had at their height.
const MEMORY_SLACK: u64 = 3 * 1024;

/// Counts by what is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory(pub BTreeMap<String, u64>);

impl Inventory {
    /// Takes it.
    pub fn take(places: &Places, pid: u32) -> Result<Self> {
        let maps = Maps::open(&Pins::new(&places.bpffs)?)?;
        let pods: Vec<u64> = maps.pods.keys()?;
        let (rows, count) = handshakes(places)?;
        let foreign = |cookies: &mut dyn Iterator<Item = u64>| {
            cookies.filter(|cookie| !pods.contains(cookie)).count() as u64
        };
        let mut all = BTreeMap::new();
        let mut put = |what: &str, count: u64| all.insert(what.to_owned(), count);
        put("rows: POD_BY_NETNS", pods.len() as u64);
        put("rows: POLICY_BY_ID", maps.policies.keys()?.len() as u64);
        put("rows: PORT_RULES", maps.ports.keys()?.len() as u64);
        put("rows: RANGE_RULES", maps.ranges.keys()?.len() as u64);
        put("rows: OWNER_RULES", maps.owners.keys()?.len() as u64);
        put("rows: ROUTE_BY_POD", maps.routes.keys()?.len() as u64);
        put("rows: IFACE_BY_POD", maps.ifaces.keys()?.len() as u64);
        put("rows: LISTENERS", maps.listeners.keys()?.len() as u64);
        put("rows: HANDSHAKES", rows);
        put("HANDSHAKE_COUNT", count as u64);
        // A pod that stays gets counters for more and more rules.
        let counted = maps.counts.keys()?;
        put(
            "rows: COUNT_BY_RULE of pods that are gone",
            foreign(&mut counted.iter().map(|key| key.netns)),
        );
        let root = places.pins();
        for dir in ["maps", "links", "pods"] {
            put(&format!("pins: {dir}"), files(&root.join(dir)));
        }
        put(
            "agent: open descriptors",
            fs::read_dir(format!("/proc/{pid}/fd"))
                .context("look at the agent")?
                .count() as u64,
        );
        let agent = procfs::process::Process::new(pid as i32)?;
        let status = agent.status()?;
        put("agent: threads", threads(&agent)?);
        put(MEMORY, status.rssanon.context("RssAnon")?);
        Ok(Self(all))
    }

    /// What is not at the end as it was at the start.
    pub fn differences(&self, end: &Self) -> Vec<String> {
        let slack = |what: &str| if what == MEMORY { MEMORY_SLACK } else { 0 };
        self.0
            .iter()
            .filter_map(|(what, start)| {
                let end = end.0.get(what).copied().unwrap_or_default();
                let fine = if what == MEMORY {
                    end <= start + slack(what)
                } else {
                    end == *start
                };
                (!fine).then(|| format!("{what}: {start} at the start, {end} at the end"))
            })
            .collect()
    }
}

/// Threads that stay: the fewest of some looks, since helper threads come for a moment.
fn threads(agent: &procfs::process::Process) -> Result<u64> {
    let mut fewest = u64::MAX;
    for _ in 0..5 {
        fewest = fewest.min(agent.status()?.threads);
        thread::sleep(Duration::from_millis(100));
    }
    Ok(fewest)
}

/// Files below a directory.
fn files(dir: &Path) -> u64 {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path()),
            _ => 1,
        })
        .sum()
}

/// Rows in HANDSHAKES, and how many the programs believe there are.
pub fn handshakes(places: &Places) -> Result<(u64, i64)> {
    let maps = Maps::open(&Pins::new(&places.bpffs)?)?;
    let rows = maps.handshakes.keys()?.len() as u64;
    let count = maps.handshake_count.get(&0)?.unwrap_or_default();
    Ok((rows, count as i64))
}
