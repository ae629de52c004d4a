//! What a build with layout 6 leaves in the kernel. `SIDETRACK_OLDER` is the path of such a build; without it the
//! pins of this one become those of layout 6, with the rows of the pods and of the connections that are held.

use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra},
    command::run_words,
    product::{Table, sys},
    sidecar,
};
use nix::sys::signal::Signal;
use sidetrack_common::{
    conn::{DestinationKey, DestinationRow, StoredRecord},
    names,
    pod::Pod,
};

use super::{OLDER, OURS, version};
use crate::fixture::PodFixture;

/// A map that layout 6 has pinned: its name, its name now if that is another, and the sizes of its keys and values.
type Map = (&'static str, Option<&'static str>, u32, u32);

const MAPS: [Map; 28] = [
    ("ACCELERATED", None, 48, 8),
    ("ARRIVAL_NETNS", Some(names::INBOUND_NETNS), 4, 16),
    ("ARRIVAL_PROGRAM", Some(names::INBOUND_PROGRAM), 4, 4),
    ("BEFORE_SIDECAR", None, 8, 4),
    ("COUNTERS_BY_POD", None, 8, 8),
    ("COUNT_BY_RULE", None, 24, 8),
    ("DESTINATIONS", None, 16, 56),
    ("DESTINATIONS_BY_POD", None, 8, 8),
    ("EVENTS", None, 0, 0),
    ("FLOWS", None, 48, 24),
    ("FORWARD_PROBE", None, 4, 4),
    ("HANDSHAKES", None, 32, 80),
    ("HANDSHAKES_BY_POD", None, 8, 8),
    ("HANDSHAKE_COUNT", None, 4, 8),
    ("IFACE_BY_POD", None, 16, 8),
    ("LAST_REFUSAL", None, 16, 112),
    ("LISTENERS", None, 16, 8),
    ("LOOPBACK_SIDECAR", Some(names::SIDECAR_BY_POD), 8, 4),
    ("OVERFLOW_BY_POD", None, 8, 1280),
    ("OWNER_RULES", None, 12, 4),
    ("POD_BY_NETNS", None, 8, 400),
    ("POLICY_BY_ID", None, 4, 32),
    ("PORT_RULES", None, 8, 4),
    ("RANGE_RULES", None, 28, 4),
    ("RECORD_BY_SOCK", None, 4, 40),
    ("ROUTE_BY_POD", None, 32, 28),
    ("TRACING", None, 4, 8),
    ("TRANSLATION", None, 4, 4),
];

/// Maps whose rows have grown since, with the sizes of keys and values in this build.
const GROWN: [(&str, u32, u32); 2] = [
    (
        names::DESTINATIONS,
        size_of::<DestinationKey>() as u32,
        size_of::<DestinationRow>() as u32,
    ),
    (names::RECORD_BY_SOCK, 4, size_of::<StoredRecord>() as u32),
];

/// The name that a map has in layout 6.
pub fn name_of(map: &'static str) -> &'static str {
    let found = MAPS.iter().find(|(_, now, ..)| *now == Some(map));
    found.map_or(map, |(old, ..)| old)
}

/// The flag of pods whose addresses were filtered. All are now, and the flag is gone.
pub const FILTERS_ADDRESSES: u32 = 1 << 11;

/// An enrolled pod of an agent with layout 6, or of this build, which [`super::end_as`] makes one of layout 6.
pub fn started(annotations: &[(&str, &str)]) -> Result<(PodFixture, Actor)> {
    let Some(binary) = std::env::var_os("SIDETRACK_OLDER").map(PathBuf::from) else {
        return super::started(annotations);
    };
    let mut fixture = PodFixture::new()?;
    fixture.agent.end(Signal::SIGTERM)?;
    fs::remove_dir_all(version(&fixture, OURS)).context("remove the pins of this build")?;
    let extra = Extra {
        binary: Some(&binary),
        ..Extra::default()
    };
    fixture.agent = Agent::start_with(fixture.lab.places(), &extra)?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.lab.write_pod("app", &fixture.pod, annotations)?;
    fixture.agent.places.wait_enrolled("test/app")?;
    Ok((fixture, sidecar))
}

/// Makes pinned maps those of layout 6. Those that layout 6 has too keep their rows, and the programs that use them.
pub fn convert(maps: &Path) -> Result<()> {
    // Maps that it does not have.
    let known = |name: &str| MAPS.iter().any(|(old, now, ..)| now.unwrap_or(old) == name);
    for pin in fs::read_dir(maps)?.flatten() {
        if !known(&pin.file_name().to_string_lossy()) {
            fs::remove_file(pin.path())?;
        }
    }
    for (name, now, key, value) in MAPS {
        let (path, now) = (maps.join(name), maps.join(now.unwrap_or(name)));
        if now.exists() {
            fs::rename(&now, &path).with_context(|| format!("rename {}", now.display()))?;
        } else {
            create(&path, key, value)?;
        }
    }
    let pods = pods(maps)?;
    for (cookie, mut row) in pods.rows()? {
        row.flags |= FILTERS_ADDRESSES;
        pods.insert(&cookie, &row)?;
    }
    has_all(maps)
}

/// The rows of pods.
pub fn pods(maps: &Path) -> Result<Table<u64, Pod>> {
    Ok(Table::new(open(&maps.join(names::POD_BY_NETNS))?)?)
}

/// Checks names and sizes of pinned maps: they are those that builds with layout 6 make.
pub fn has_all(maps: &Path) -> Result<()> {
    let pinned: BTreeSet<_> = fs::read_dir(maps)?
        .flatten()
        .map(|it| it.file_name())
        .collect();
    let wanted = MAPS.map(|(name, ..)| name.into());
    ensure!(
        pinned == BTreeSet::from(wanted),
        "layout {OLDER} has other maps: {pinned:?}"
    );
    for (name, _, key, value) in MAPS {
        let info = sys::map_info(open(&maps.join(name))?.as_fd())?;
        // The rows of this build are there for its own programs, which go on to use them. Agents never read them.
        let has_grown = GROWN.contains(&(name, info.key_size, info.value_size));
        ensure!(
            (info.key_size, info.value_size) == (key, value) || has_grown,
            "{name} has keys of {} and values of {} bytes in this build, {key} and {value} in layout {OLDER}",
            info.key_size,
            info.value_size
        );
    }
    Ok(())
}

fn open(pin: &Path) -> Result<OwnedFd> {
    sys::open_pin(pin).with_context(|| format!("open {}", pin.display()))
}

fn create(path: &Path, key: u32, value: u32) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (path, key, value) = (path.to_string_lossy(), key.to_string(), value.to_string());
    run_words(&[
        "bpftool", "map", "create", &path, "type", "lru_hash", "key", &key, "value", &value,
        "entries", "1024", "name", &name,
    ])
    .map(drop)
}
