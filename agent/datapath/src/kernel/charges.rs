//! Corrects the programs' counts of records. The kernel programs count a record until its socket is closed; a connection
//! whose listener is closed before it is accepted, and before Linux 5.19 a subflow of MPTCP, ends without any of them. One
//! that is closed and whose peer does not close has its record until the kernel gives it up.

use std::{
    collections::BTreeMap,
    io,
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::Result;
use aya::{Btf, Ebpf};
use parking_lot::Mutex;
use sidetrack_common::{
    conn::Charge,
    names::{self, POOL_IN_USE},
};

use super::{maps::from_pin, objects::load_iterator, pins::Pins, sys, table::Table};

/// How often all records are looked at. What two looks see is corrected.
const INTERVAL: Duration = Duration::from_secs(5);
/// By how much a count may be off that moves meanwhile.
const TOLERATED: i64 = 256;

/// The program that walks over all records, and the counts.
#[derive(Debug)]
pub struct Charges {
    program: OwnedFd,
    records: OwnedFd,
    counts: Table<u64, u64>,
    last: Mutex<Option<(Instant, BTreeMap<u64, i64>)>>,
}

impl Charges {
    /// Loads the program.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub(super) fn load((ebpf, types): (&mut Ebpf, &Btf), pins: &Pins) -> Result<Self> {
        Ok(Self {
            program: load_iterator((ebpf, types), "st_charges", "bpf_sk_storage_map")?,
            records: sys::open_pin(&pins.map(names::RECORD_BY_SOCK))?,
            counts: from_pin(pins, names::RECORDS_BY_POD)?,
            last: Mutex::default(),
        })
    }

    /// Corrects counts that were off by as much the last time. To be called at any time; it looks every five seconds.
    ///
    /// # Errors
    /// If the records cannot be walked over, or the counts not be read.
    pub fn recount(&self) -> io::Result<()> {
        let mut last = self.last.lock();
        let now = Instant::now();
        if last.as_ref().is_some_and(|(at, _)| now < *at + INTERVAL) {
            return Ok(());
        }
        let mut drifts = self.drifts()?;
        let (_, before) = last.take().unwrap_or((now, BTreeMap::new()));
        for (netns, drift) in &mut drifts {
            let earlier = before.get(netns).copied().unwrap_or_default();
            let certain = certain(earlier, *drift);
            self.subtract(*netns, certain)?;
            // What is left has to be seen twice as well.
            *drift -= certain;
        }
        *last = Some((now, drifts));
        Ok(())
    }

    /// Walks over all records, as [`Self::recount`] does.
    ///
    /// # Errors
    /// If the kernel does not let it.
    pub(super) fn try_out(&self) -> io::Result<()> {
        self.read().map(drop)
    }

    /// By how much counts are too high at least, or, less than 0, too low.
    fn drifts(&self) -> io::Result<BTreeMap<u64, i64>> {
        let counted = || -> io::Result<BTreeMap<u64, i64>> {
            let rows = self.counts.rows()?.into_iter();
            Ok(rows.map(|(netns, count)| (netns, count as i64)).collect())
        };
        let before = counted()?;
        if before.is_empty() {
            return Ok(before);
        }
        let there = self.read()?;
        let after = counted()?;
        let drifts = after.into_iter().map(|(netns, after)| {
            let before = before.get(&netns).copied().unwrap_or_default();
            let there = there.get(&netns).copied().unwrap_or_default();
            (netns, drift(before, after, there))
        });
        Ok(drifts.filter(|(_, drift)| *drift != 0).collect())
    }

    /// What the records count as, by pod, and all together.
    fn read(&self) -> io::Result<BTreeMap<u64, i64>> {
        let records = sys::iterate_map(self.program.as_fd(), self.records.as_fd())?;
        let mut there: BTreeMap<u64, i64> = BTreeMap::new();
        let mut rest = Vec::new();
        sys::read_iterator(records, |read| {
            rest.extend_from_slice(read);
            let rows = rest.chunks_exact(size_of::<Charge>());
            let remaining = rows.remainder().to_vec();
            for row in rows {
                let Charge { netns, charge } = bytemuck::pod_read_unaligned(row);
                for netns in [netns, POOL_IN_USE] {
                    *there.entry(netns).or_default() += charge as i64;
                }
            }
            rest = remaining;
            ControlFlow::Continue(())
        })?;
        Ok(there)
    }

    /// Programs count at the same time: the next look sees what that has lost.
    fn subtract(&self, netns: u64, drift: i64) -> io::Result<()> {
        if drift == 0 {
            return Ok(());
        }
        let counted = self.counts.get(&netns)?.unwrap_or_default();
        let corrected = (counted as i64).saturating_sub(drift);
        self.counts.insert(&netns, &(corrected as u64))
    }
}

/// What two looks agree on. The walk over records misses some, or sees some twice, while others are made and freed.
fn certain(earlier: i64, drift: i64) -> i64 {
    if earlier == drift {
        return drift;
    }
    let both = if earlier.signum() == drift.signum() {
        earlier.abs().min(drift.abs())
    } else {
        0
    };
    (both - TOLERATED).max(0) * drift.signum()
}

/// By how much a count is off, that was one thing before and another after the records were looked at.
const fn drift(before: i64, after: i64, there: i64) -> i64 {
    let tolerated = if before == after { 0 } else { TOLERATED };
    let (low, high) = if before < after {
        (before, after)
    } else {
        (after, before)
    };
    if low - there > tolerated {
        low - there - tolerated
    } else if there - high > tolerated {
        high - there + tolerated
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
