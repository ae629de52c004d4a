//! Every map at its documented size: does it fit into the agent's memory limit?

use std::{io, os::fd::AsFd as _};

use anyhow::{Context as _, Result, ensure};
use lab::product::{PINNED, Pins, sys};

use crate::{
    report::{Seen, mebibytes},
    world::{LIMIT, World},
};

/// `BPF_MAP_TYPE_*` of maps whose rows are written here. Of the others the kernel makes all rows at once (arrays, ring
/// buffers), or they live and end with sockets.
const HASH: u32 = 1;
const PERCPU_HASH: u32 = 5;
const LRU_HASH: u32 = 9;
const LPM_TRIE: u32 = 11;
/// Of its memory limit the agent keeps an eighth free when all maps are full.
const MAX_MEMORY: u64 = LIMIT / 8 * 7;

/// Fills every map.
pub fn fill(world: &mut World) -> Result<Seen> {
    world.take_peak()?;
    let pins = Pins::new(&world.places().bpffs)?;
    let mut rows = 0;
    for name in PINNED {
        rows += fill_one(&pins, name).with_context(|| format!("fill {name}"))?;
    }
    let memory = world.take_peak()?;
    world.agent()?;
    let seen = vec![
        format!("{rows} rows"),
        format!("{} of memory", mebibytes(memory)),
    ];
    ensure!(memory < MAX_MEMORY, "{}", seen.join(", "));
    Ok(seen)
}

/// Answers how many rows were written. Keys are random: for a trie that is the worst case.
fn fill_one(pins: &Pins, name: &str) -> Result<u64> {
    let map = sys::open_pin(&pins.map(name))?;
    let info = sys::map_info(map.as_fd())?;
    let size = match info.type_ {
        HASH | LRU_HASH | LPM_TRIE => info.value_size as usize,
        PERCPU_HASH => info.value_size.next_multiple_of(8) as usize * processors()?,
        _ => return Ok(0),
    };
    let value = vec![0; size];
    let mut random = fastrand::Rng::with_seed(1);
    let mut rows = 0;
    while rows < u64::from(info.max_entries) {
        let mut key = vec![0; info.key_size as usize];
        random.fill(&mut key);
        if info.type_ == LPM_TRIE {
            let bits = (info.key_size - 4) * 8;
            key[..4].copy_from_slice(&bits.to_ne_bytes());
        }
        match sys::map_update(map.as_fd(), &key, &value, 0) {
            Ok(()) => rows += 1,
            Err(error) if is_full(&error) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rows)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC))
}

fn processors() -> Result<usize> {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = possible.trim().rsplit(['-', ',']).next().unwrap_or("0");
    Ok(last.parse::<usize>()? + 1)
}
