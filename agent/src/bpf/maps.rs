//! The pinned maps, typed. Opened from the pins alone, so that commands work when no agent runs.

use anyhow::{Context as _, Result};
use aya::Pod as PlainOldData;
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
            before_sidecar: table(pins, names::BEFORE_SIDECAR)?,
            listeners: table(pins, names::LISTENERS)?,
            counts: Counters::new(open(pins, names::COUNT_BY_RULE)?)
                .context("open COUNT_BY_RULE")?,
        })
    }
}

impl Maps {
    /// Corrects the programs' own count of handshakes if it has drifted: too high a count would refuse
    /// connections. They go on counting meanwhile, so a difference counts only if it is there twice
    /// while nothing moves: a correction made in the middle of a flood would itself be the drift.
    pub fn recount_handshakes(&self) -> Result<()> {
        let (Some(first), Some(_)) = (self.handshake_drift()?, self.handshake_drift()?) else {
            return Ok(());
        };
        let believed = self.handshake_count.get(&0)?.unwrap_or_default();
        self.handshake_count
            .insert(&0, &believed.wrapping_sub(first as u64))
            .context("correct the count")
    }

    /// By how much the count is too high, if it is far off and nothing moves.
    fn handshake_drift(&self) -> Result<Option<i64>> {
        const TOLERATED: u64 = 256;
        let believed = || -> Result<u64> {
            let count = self.handshake_count.get(&0)?;
            Ok(count.unwrap_or_default())
        };
        let before = believed()?;
        let counted = self.handshakes.keys().context("list handshakes")?.len() as u64;
        let after = believed()?;
        let moves = before.wrapping_sub(after) as i64;
        let drift = after.wrapping_sub(counted) as i64;
        let quiet = moves.unsigned_abs() <= TOLERATED;
        Ok((quiet && drift.unsigned_abs() > TOLERATED).then_some(drift))
    }
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
