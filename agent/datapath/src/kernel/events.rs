//! Reads the events of the kernel programs.

use anyhow::{Context as _, Result};
use aya::maps::{Map, MapData, RingBuf};
use nix::time::{ClockId, clock_gettime};
use sidetrack_common::{
    event::{EVENTS_LOST, Event, TRACED_UNTIL},
    names,
};

use super::{maps::from_pin, pins::Pins, table::Table};

/// The queue of events. Only one process may read it.
#[expect(missing_debug_implementations, reason = "aya's ring buffer has none")]
pub struct Events {
    ring: RingBuf<MapData>,
    tracing: Table<u32, u64>,
}

impl Events {
    /// Opens the pinned queue.
    ///
    /// # Errors
    /// If a map is not there, or of another build.
    pub fn open(pins: &Pins) -> Result<Self> {
        let path = pins.map(names::EVENTS);
        let data = MapData::from_pin(&path).with_context(|| format!("open {}", path.display()))?;
        let map = Map::from_map_data(data)?;
        Ok(Self {
            ring: RingBuf::try_from(map).with_context(|| format!("map {}", path.display()))?,
            tracing: from_pin(pins, names::TRACING)?,
        })
    }

    /// Takes at most `most` events out of the queue.
    pub fn take(&mut self, most: usize, mut each: impl FnMut(Event)) {
        for _ in 0..most {
            let Some(item) = self.ring.next() else { return };
            // What another build wrote has another length.
            if let Ok(event) = bytemuck::try_pod_read_unaligned(&item) {
                each(event);
            }
        }
    }

    /// Has the programs send events until a moment, in nanoseconds since boot; 0 stops them.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn want_until(&self, until: u64) -> Result<()> {
        let written = self.tracing.insert(&TRACED_UNTIL, &until);
        written.context("write TRACING")
    }

    /// How many events found no room since the maps were made.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn lost(&self) -> Result<u64> {
        let lost = self.tracing.get(&EVENTS_LOST);
        Ok(lost.context("read TRACING")?.unwrap_or_default())
    }
}

/// Nanoseconds since boot, by the clock of [`Event::at`].
#[must_use]
pub fn boot_time() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |now| {
        let (seconds, nanos) = (now.tv_sec() as u64, now.tv_nsec() as u64);
        seconds * 1_000_000_000 + nanos
    })
}
