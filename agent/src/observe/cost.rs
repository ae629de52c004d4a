//! What sidetrack costs: memory of the maps, and the agent's own process.

use std::{fs, io, time::Duration};

use nix::time::{ClockId, clock_gettime};
use sidetrack_datapath::kernel::{
    memory::{self, MapMemory, field},
    usage::Usage,
};

use crate::api::{Cost, MapCost, ProcessCost};

/// Puts what was read together.
#[must_use]
pub fn cost(
    enrolled: u64,
    memory: &[MapMemory],
    usage: &[Usage],
    agent: Option<ProcessCost>,
) -> Cost {
    let maps = memory.iter().map(|of| {
        let usage = usage.iter().find(|usage| usage.map == of.map);
        MapCost {
            map: of.map.to_owned(),
            bytes: of.bytes,
            row_bytes: of.row_bytes,
            rows: usage.map(|usage| usage.rows),
            // Of what pods have together, a limit may be lower.
            capacity: usage.map(|usage| usage.capacity.max(of.max_entries)),
        }
    });
    Cost {
        enrolled,
        maps: maps.collect(),
        maps_exact: memory::is_exact(),
        agent,
    }
}

/// What this process takes; `uptime` is how long it has run.
///
/// # Errors
/// If the kernel does not say it.
pub fn own_process(uptime: Duration) -> io::Result<ProcessCost> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kilobytes = |name: &str| field(&status, name).map(|count| count * 1024);
    let cpu = Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?);
    Ok(ProcessCost {
        resident_bytes: kilobytes("VmRSS:").unwrap_or_default(),
        peak_resident_bytes: kilobytes("VmHWM:").unwrap_or_default(),
        cpu_seconds: cpu.as_secs_f64(),
        uptime_seconds: uptime.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests;
