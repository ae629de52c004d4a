//! The table of maps, and the pinned maps, typed. They are opened from the pins alone, so that commands
//! work when no agent runs.
//!
//! A new map is one entry here, beside its static in `ebpf/src/core/maps/`.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
};

use anyhow::{Context as _, Result};
use bytemuck::Pod as PlainOldData;
use sidetrack_common::{
    conn::{DestinationKey, DestinationRow, HandshakeKey, HandshakeRow, ListenerKey},
    count::{CountKey, RuleCounts},
    event::{Event, RefusalKey},
    names,
    pod::{IfaceKey, IfaceRow, Pod, Route, RouteKey},
    policy::{OwnerKey, Policy, PortKey, RangeKey},
    route_rules::{MAX_SELECTORS, RouteSelector, SelectorsKey},
};

use super::{pins::Pins, sys, table::Table, usage::Usage};

/// Defines [`Maps`], its constructor, [`PINNED`] and [`Maps::usage`] from one list. A map with a
/// limit has a text for what happens when it is full, and one for the cure. `opaque` maps
/// are not read as tables: by the kernel programs only, or in another way.
macro_rules! maps {
    (
        $( $(#[$doc:meta])+ $field:ident: $ty:ty = $name:ident $(, full: $then:literal => $cure:literal)?; )+
        opaque: $($opaque:ident),+ $(,)?
    ) => {
        /// Every map that userspace reads or writes.
        #[derive(Debug)]
        pub struct Maps {
            $( $(#[$doc])+ pub $field: $ty, )+
        }

        /// Names of all maps that are pinned and shared between programs.
        pub const PINNED: &[&str] = &[$(names::$name,)+ $(names::$opaque),+];

        impl Maps {
            /// Opens the pinned maps.
            ///
            /// # Errors
            /// If one is missing, or its keys or values have another size.
            pub fn open(pins: &Pins) -> Result<Self> {
                Ok(Self { $( $field: from_pin(pins, names::$name)?, )+ })
            }

            /// How full every map with a limit is.
            ///
            /// # Errors
            /// If a map cannot be read.
            pub fn usage(&self) -> io::Result<Vec<Usage>> {
                let mut all = Vec::new();
                $( $(
                    let (rows, capacity) = self.$field.usage()?;
                    all.push(Usage { map: names::$name, then: $then, cure: $cure, rows, capacity });
                )? )+
                self.count_pools(&mut all)?;
                Ok(all)
            }
        }
    };
}

maps! {
    /// Enrolled pods by netns cookie.
    pods: Table<u64, Pod> = POD_BY_NETNS,
        full: "further pods are rejected" => "move pods to other nodes";
    /// Policies by id.
    policies: Table<u32, Policy> = POLICY_BY_ID,
        full: "pods with further policies are rejected"
            => "let more pods have the same port and range lists";
    /// Port lists.
    ports: Table<PortKey, u32> = PORT_RULES,
        full: "pods with further lists of ports are rejected"
            => "shorten the pods' lists of ports";
    /// Owner lists.
    owners: Table<OwnerKey, u32> = OWNER_RULES,
        full: "pods with further lists of users or groups are rejected"
            => "shorten the pods' lists of users and groups";
    /// CIDR lists.
    ranges: Table<RangeKey, u32> = RANGE_RULES,
        full: "pods with further lists of ranges are rejected"
            => "shorten the pods' lists of ranges";
    /// Pods' routes.
    routes: Table<RouteKey, Route> = ROUTE_BY_POD,
        full: "further pods are rejected, and connections of a running pod that need a missing row follow a wider route or are refused"
            => "find the pods with many routes";
    /// What chooses between views of pods' routes.
    selectors: Table<SelectorsKey, [RouteSelector; MAX_SELECTORS]> = SELECTORS_BY_POD,
        full: "further pods with rules of policy routing are rejected" => "move pods to other nodes";
    /// Pods' interfaces that rules name.
    ifaces: Table<IfaceKey, IfaceRow> = IFACE_BY_POD,
        full: "the newest interfaces of pods count as not named" => "name fewer interfaces";
    /// Handshakes in flight.
    handshakes: Table<HandshakeKey, HandshakeRow> = HANDSHAKES,
        full: "connections that would be redirected are refused, but for a few of each pod"
            => "restart the sidecars that do not accept connections";
    /// How many rows of handshakes the kernel programs have counted.
    handshake_count: Table<u32, u64> = HANDSHAKE_COUNT;
    /// Connections that needed one, by `HandshakeReason`.
    handshakes_by_reason: Table<u32, u64> = HANDSHAKES_BY_REASON;
    /// How many of them are each pod's, by netns cookie; no row means none.
    handshakes_by_pod: Table<u64, u64> = HANDSHAKES_BY_POD,
        full: "further pods' handshakes are limited only together" => "move pods to other nodes";
    /// How many records of sockets each pod has, by netns cookie; no row means none.
    records_by_pod: Table<u64, u64> = RECORDS_BY_POD,
        full: "the records of further pods' sockets are not limited" => "move pods to other nodes";
    /// Sidecars' listeners. A value read is the socket's cookie, a value written a descriptor.
    listeners: Table<ListenerKey, u64> = LISTENERS,
        full: "inbound connections of sidecars that start to listen are refused"
            => "let sidecars listen on fewer sockets";
    /// Connections by pod and rule.
    counts: Table<CountKey, u64> = COUNT_BY_RULE,
        full: "further pods' connections are counted by rule, without the position in its list"
            => "shorten the pods' lists";
    /// How many of these counters each pod has.
    counters_by_pod: Table<u64, u64> = COUNTERS_BY_POD;
    /// Connections of pods that have no room for more counters, by rule alone.
    overflow: Table<u64, RuleCounts> = OVERFLOW_BY_POD,
        full: "further pods that have no room for counters do not count connections"
            => "shorten the pods' lists";
    /// Pods that may reach the network until their sidecar first listens, and whose has not yet.
    before_sidecar: Table<u64, u32> = BEFORE_SIDECAR,
        full: "further pods that are to reach the network before their sidecar are rejected"
            => "move pods to other nodes";
    /// Pods with a listener on loopback at a capture port, with the bits of these ports.
    sidecar_bits: Table<u64, u32> = SIDECAR_BY_POD,
        full: "outbound connections to further sidecars that listen on loopback only are refused"
            => "move pods to other nodes";
    /// The node's secret that these targets depend on.
    target_seed: Table<u32, u64> = TARGET_SEED;
    /// Destinations that have a target of their own.
    destinations: Table<DestinationKey, DestinationRow> = DESTINATIONS,
        full: "connections to further destinations are redirected in a slower way"
            => "find the pods that connect to many destinations";
    /// How many of them are each pod's, by netns cookie.
    destinations_by_pod: Table<u64, u64> = DESTINATIONS_BY_POD;
    /// Until when somebody traces, and how many events were lost.
    tracing: Table<u32, u64> = TRACING;
    /// Each pod's last refusal for each reason.
    last_refusals: Table<RefusalKey, Event> = LAST_REFUSAL,
        full: "further pods' last refusals are not remembered" => "move pods to other nodes";
    opaque: EVENTS, RECORD_BY_SOCK, INBOUND_PROGRAM, INBOUND_NETNS, FORWARD_PROBE, TRANSLATION,
}

impl Maps {
    /// Chooses the node's secret, unless an earlier agent has: the targets of its connections depend on it.
    ///
    /// # Errors
    /// If the map cannot be read or written.
    pub(super) fn choose_target_seed(&self) -> Result<()> {
        let seed = self.target_seed.get(&0);
        if seed.context("read TARGET_SEED")?.unwrap_or_default() == 0 {
            let written = self.target_seed.insert(&0, &random());
            written.context("write TARGET_SEED")?;
        }
        Ok(())
    }
}

/// A number that no one can guess: the keys of the standard library's hash maps come from the kernel's random numbers.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// One map, opened from its pin: for a thread of its own.
pub(super) fn from_pin<K: PlainOldData, V: PlainOldData>(
    pins: &Pins,
    name: &str,
) -> Result<Table<K, V>> {
    let path = pins.map(name);
    let fd = sys::open_pin(&path).with_context(|| format!("open map {}", path.display()))?;
    Table::new(fd).with_context(|| {
        format!(
            "map {} was made by another build: run `sidetrack cleanup` and start the agent again",
            path.display()
        )
    })
}
