//! What there is at the start and at the end: map rows, pins, programs, the agent's memory and
//! descriptors.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lab::agent::Places;
use lab::product::{Maps, Pins};
use procfs::process::{FDTarget, Process};

/// The row of the table that may be larger at the end by [`MEMORY_SLACK`].
const MEMORY: &str = "agent: memory of its own, KiB";
/// Allocators keep what they had at their height.
const MEMORY_SLACK: u64 = 3 * 1024;
const MAX_READS: u32 = 10;
const READ_INTERVAL: Duration = Duration::from_millis(70);

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
        let agent = Process::new(pid as i32)?;
        let memory = agent.status()?.rssanon.context("RssAnon")?;
        put(MEMORY, memory);
        for (what, count) in that_stay(&agent)? {
            put(&format!("agent: {what}"), count);
        }
        Ok(Self(all))
    }

    /// How many of it there are.
    pub fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// What is counted in one of them or in both.
    pub fn both<'a>(&'a self, end: &'a Self) -> BTreeSet<&'a String> {
        self.0.keys().chain(end.0.keys()).collect()
    }

    /// What is not at the end as it was at the start.
    pub fn differences(&self, end: &Self) -> Vec<String> {
        self.both(end)
            .into_iter()
            .filter_map(|what| {
                let (start, end) = (self.count(what), end.count(what));
                let fine = if what == MEMORY {
                    end <= start + MEMORY_SLACK
                } else {
                    end == start
                };
                (!fine).then(|| format!("{what}: {start} at the start, {end} at the end"))
            })
            .collect()
    }
}

/// Threads, and descriptors by kind, that stay: the fewest of some looks, since helper threads come
/// for a moment and open files for another.
fn that_stay(agent: &Process) -> Result<BTreeMap<String, u64>> {
    let mut fewest: Option<BTreeMap<String, u64>> = None;
    for _ in 0..MAX_READS {
        let now = at_this_moment(agent)?;
        fewest = Some(match fewest {
            None => now,
            Some(mut fewest) => {
                fewest.retain(|what, _| now.contains_key(what));
                for (what, count) in &mut fewest {
                    *count = now[what].min(*count);
                }
                fewest
            }
        });
        thread::sleep(READ_INTERVAL);
    }
    fewest.context("nothing was read")
}

fn at_this_moment(agent: &Process) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::from([("threads".to_owned(), agent.status()?.threads)]);
    // One that is closed while they are listed is none that stays.
    for descriptor in agent.fd().context("list the descriptors")?.flatten() {
        let kind = match descriptor.target {
            FDTarget::Path(_) => "files".to_owned(),
            FDTarget::Socket(_) => "sockets".to_owned(),
            FDTarget::Net(_) => "network namespaces".to_owned(),
            FDTarget::Pipe(_) => "pipes".to_owned(),
            // A link is `bpf_link` to who made it and `bpf-link` to who opened its pin.
            FDTarget::AnonInode(kind) => kind.replace('_', "-"),
            _ => "others".to_owned(),
        };
        *counts.entry(format!("descriptors, {kind}")).or_default() += 1;
    }
    Ok(counts)
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
