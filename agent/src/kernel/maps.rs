//! The pinned maps, typed. Opened from the pins alone, so that commands work when no agent runs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use bytemuck::Pod as PlainOldData;
use sidetrack_common::{
    conn::{CountKey, Handshake, HandshakeKey, ListenerKey},
    names,
    pod::{IfaceKey, IfaceRow, Pod, Route, RouteKey},
    policy::{OwnerKey, Policy, PortKey, RangeKey},
};

use super::{
    pins::Pins,
    sys,
    table::{Counters, Table},
};

/// Every map userspace reads or writes.
#[derive(Debug)]
pub struct Maps {
    /// Enrolled pods by netns cookie.
    pub pods: Table<u64, Pod>,
    /// Policies by id.
    pub policies: Table<u32, Policy>,
    /// Port lists.
    pub ports: Table<PortKey, u32>,
    /// CIDR lists.
    pub ranges: Table<RangeKey, u32>,
    /// Owner lists.
    pub owners: Table<OwnerKey, u32>,
    /// Pods' routes.
    pub routes: Table<RouteKey, Route>,
    /// Pods' interfaces that rules name.
    pub ifaces: Table<IfaceKey, IfaceRow>,
    /// Handshakes in flight.
    pub handshakes: Table<HandshakeKey, Handshake>,
    /// How many rows the kernel programs believe there are.
    pub handshake_count: Table<u32, u64>,
    /// How many of them are each pod's, by netns cookie; no row means none.
    pub handshakes_by_pod: Table<u64, u64>,
    /// Pods whose sidecar has never listened, of those that may reach the network till then.
    pub before_sidecar: Table<u64, u32>,
    /// Sidecars' listeners; a value read is the socket's cookie, a value written a descriptor.
    pub listeners: Table<ListenerKey, u64>,
    /// Connections by pod and rule.
    pub counts: Counters<CountKey>,
}

impl Maps {
    /// Opens the pinned maps.
    pub fn open(pins: &Pins) -> Result<Self> {
        Ok(Self {
            pods: table(pins, names::POD_BY_NETNS)?,
            policies: table(pins, names::POLICY_BY_ID)?,
            ports: table(pins, names::PORT_RULES)?,
            ranges: table(pins, names::RANGE_RULES)?,
            owners: table(pins, names::OWNER_RULES)?,
            routes: table(pins, names::ROUTE_BY_POD)?,
            ifaces: table(pins, names::IFACE_BY_POD)?,
            handshakes: table(pins, names::HANDSHAKES)?,
            handshake_count: table(pins, names::HANDSHAKE_COUNT)?,
            handshakes_by_pod: table(pins, names::HANDSHAKES_BY_POD)?,
            before_sidecar: table(pins, names::BEFORE_SIDECAR)?,
            listeners: table(pins, names::LISTENERS)?,
            counts: Counters::new(open(pins, names::COUNT_BY_RULE)?)
                .context("open COUNT_BY_RULE")?,
        })
    }
}

impl Maps {
    /// Corrects the programs' own counts of handshakes, the node's and each pod's, if they have drifted:
    /// too high a count would refuse connections. They go on counting meanwhile, so a difference counts
    /// only if it is there twice while nothing moves: a correction made in the middle of a flood would
    /// itself be the drift.
    pub fn recount_handshakes(&self) -> Result<()> {
        let first = self.handshake_drifts()?;
        if first.is_empty() {
            return Ok(());
        }
        let again = self.handshake_drifts()?;
        for (count, drift) in first {
            if !again.contains_key(&count) {
                continue;
            }
            let believed = self.believed(count)?;
            let corrected = believed.wrapping_sub(drift as u64);
            match count {
                Count::Node => self.handshake_count.insert(&0, &corrected),
                Count::Pod(cookie) => self.handshakes_by_pod.insert(&cookie, &corrected),
            }
            .context("correct the count")?;
        }
        Ok(())
    }

    /// What the programs believe; no row means 0.
    fn believed(&self, count: Count) -> Result<u64> {
        let found = match count {
            Count::Node => self.handshake_count.get(&0),
            Count::Pod(cookie) => self.handshakes_by_pod.get(&cookie),
        };
        let found = found.context("read the count of handshakes")?;
        Ok(found.unwrap_or_default())
    }

    /// By how much counts are too high, of those that are far off and do not move.
    fn handshake_drifts(&self) -> Result<BTreeMap<Count, i64>> {
        const TOLERATED: u64 = 256;
        // Pods that are counted and have no rows are among them.
        let pods = self.handshakes_by_pod.keys().context("list counts")?;
        let mut before = BTreeMap::from([(Count::Node, self.believed(Count::Node)?)]);
        for cookie in pods {
            before.insert(Count::Pod(cookie), self.believed(Count::Pod(cookie))?);
        }
        let mut counted: BTreeMap<Count, u64> = BTreeMap::new();
        for key in self.handshakes.keys().context("list handshakes")? {
            *counted.entry(Count::Node).or_default() += 1;
            *counted.entry(Count::Pod(key.netns)).or_default() += 1;
        }
        let mut drifts = BTreeMap::new();
        for count in before.keys().chain(counted.keys()) {
            let before = before.get(count).copied().unwrap_or_default();
            let after = self.believed(*count)?;
            let moves = before.wrapping_sub(after) as i64;
            let counted = counted.get(count).copied().unwrap_or_default();
            let drift = after.wrapping_sub(counted) as i64;
            let quiet = moves.unsigned_abs() <= TOLERATED;
            if quiet && drift.unsigned_abs() > TOLERATED {
                drifts.insert(*count, drift);
            }
        }
        Ok(drifts)
    }
}

/// One of the programs' counts of handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Count {
    /// All.
    Node,
    /// Those of a network namespace.
    Pod(u64),
}

fn open(pins: &Pins, name: &str) -> Result<std::os::fd::OwnedFd> {
    let path = pins.map(name);
    sys::open_pin(&path).with_context(|| format!("open map {}", path.display()))
}

fn table<K: PlainOldData, V: PlainOldData>(pins: &Pins, name: &str) -> Result<Table<K, V>> {
    Table::new(open(pins, name)?).with_context(|| {
        format!(
            "map {} was made by another build: run `sidetrack cleanup` and start the agent again",
            pins.map(name).display()
        )
    })
}
