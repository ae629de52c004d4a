//! The compiled kernel programs. The core is loaded when the agent starts, the others when the first pod needs them.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use aya::{Btf, Ebpf, EbpfLoader, maps::Map, programs::Program};
use bytemuck::Pod;

use super::{
    kernel_layout::Offsets,
    kernel_log::LogLevel,
    maps::{PINNED, random},
    pins::Pins,
    probe,
    table::Table,
};

/// The hooks of a connection.
pub static CORE: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sidetrack-core"));
/// The program for packets that only pass through a pod.
pub static FORWARD: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sidetrack-forward"));
/// The programs of acceleration.
pub static ACCELERATE: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sidetrack-accelerate"));

/// The programs of DNS capture over UDP.
pub static DNS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sidetrack-dns"));

/// How long what could not be loaded is not tried again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Programs that are loaded when the first pod needs them.
#[derive(Debug, Default)]
pub enum OnDemand<T> {
    /// No pod needs them.
    #[default]
    Unloaded,
    /// They are in the kernel.
    Loaded(T),
    /// When they could not be loaded, and why.
    Failed(Instant, String),
}

impl<T> OnDemand<T> {
    /// The programs, loaded if they are not.
    ///
    /// # Errors
    /// If they cannot be, or could not be less than [`RELOAD_INTERVAL`] ago.
    pub(super) fn get(&mut self, load: impl FnOnce() -> Result<T>) -> Result<&T> {
        let is_due = match self {
            Self::Unloaded => true,
            Self::Loaded(_) => false,
            Self::Failed(at, _) => at.elapsed() >= RELOAD_INTERVAL,
        };
        if is_due {
            *self = match load() {
                Ok(programs) => Self::Loaded(programs),
                Err(problem) => Self::Failed(Instant::now(), format!("{problem:#}")),
            };
        }
        match self {
            Self::Loaded(programs) => Ok(programs),
            Self::Failed(_, problem) => Err(anyhow::Error::msg(problem.clone())),
            Self::Unloaded => unreachable!("it was loaded, or could not be"),
        }
    }

    /// The programs, if they are loaded.
    pub(super) fn loaded(&self) -> Option<&T> {
        match self {
            Self::Loaded(programs) => Some(programs),
            _ => None,
        }
    }
}

/// What every object is loaded with.
#[derive(Clone, Debug)]
pub(super) struct Loader {
    pub(super) pins: Pins,
    pub(super) offsets: Offsets,
}

impl Loader {
    /// Loads the core's maps, of which those are shared that have pins. Its programs are not loaded yet.
    pub(super) fn core(&self, level: LogLevel) -> Result<Ebpf> {
        self.load_with(CORE, (&[], &[]), Some(level))
    }

    /// The same of another object; `more` maps are pinned beside those of the core.
    pub(super) fn load(&self, object: &[u8], more: &[&str]) -> Result<Ebpf> {
        self.load_with(object, (more, &[]), None)
    }

    /// The same, with values of globals of its own.
    pub(super) fn load_set(&self, object: &[u8], globals: &[(&str, u32)]) -> Result<Ebpf> {
        self.load_with(object, (&[], globals), None)
    }

    /// `level` is for the core, the only object whose programs log. Every global must be there: a name that is written
    /// wrong leaves a program with another value than is meant.
    fn load_with(
        &self,
        object: &[u8],
        (more, globals): (&[&str], &[(&str, u32)]),
        level: Option<LogLevel>,
    ) -> Result<Ebpf> {
        let mut loader = EbpfLoader::new();
        // Rust programs have no CO-RE relocations; the offsets stand in for them. aya reads the kernel's types all the same
        // when it makes a loader.
        loader.btf(None);
        for (global, offset) in &self.offsets {
            loader.override_global(global, offset, true);
        }
        for (global, value) in globals {
            loader.override_global(global, value, true);
        }
        let errno = u8::from(probe::set_retval());
        loader.override_global("CAN_SET_ERRNO", &errno, true);
        let iface = u8::from(probe::ingress_ifindex());
        loader.override_global("CAN_SEE_IFACE", &iface, true);
        let mptcp = u8::from(probe::mptcp_parent());
        loader.override_global("CAN_SEE_MPTCP", &mptcp, true);
        let read = u8::from(probe::read_kernel());
        loader.override_global("CAN_READ_KERNEL", &read, true);
        let seed = random();
        if let Some(level) = &level {
            loader.override_global("INBOUND_SEED", &seed, true);
            loader.override_global(aya_log::LEVEL, &level.0, true);
        }
        let pinned = PINNED.iter().chain(more);
        let paths: Vec<(&str, PathBuf)> = pinned.map(|name| (*name, self.pins.map(name))).collect();
        for (name, path) in &paths {
            loader.map_pin_path(name, path.as_path());
        }
        loader.load(object).context(
            "load the kernel programs; `sidetrack doctor` says what this kernel lacks, if anything",
        )
    }
}

/// Loads programs of an object, which are then ready to be attached.
///
/// The kernel's verifier needs up to a tenth of a second for one, so two are verified at a time.
pub(super) fn load_programs(ebpf: &mut Ebpf, names: &[String]) -> Result<Vec<OwnedFd>> {
    let mut programs: HashMap<&str, &mut Program> = ebpf.programs_mut().collect();
    let waiting = names.iter();
    let waiting = Mutex::new(waiting.filter_map(|name| programs.remove_entry(name.as_str())));
    let next = || waiting.lock().expect("no loader panics").next();
    let load_rest = || -> Result<()> {
        while let Some((name, program)) = next() {
            load(program).with_context(|| format!("load {name}"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        // One thread does it as well, where the kernel gives no other.
        let other = thread::Builder::new().spawn_scoped(scope, load_rest);
        let own = load_rest();
        own.and(other.map_or(Ok(()), |it| it.join().expect("no loader panics")))
    })?;
    let names = names.iter();
    names.map(|name| descriptor(find(ebpf, name)?)).collect()
}

/// The same for one.
pub(super) fn load_program(ebpf: &mut Ebpf, name: &str) -> Result<OwnedFd> {
    let program = find(ebpf, name)?;
    load(program).with_context(|| format!("load {name}"))?;
    descriptor(program)
}

fn load(program: &mut Program) -> Result<()> {
    match program {
        Program::CgroupSock(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::CgroupSockopt(program) => program.load(),
        Program::SchedClassifier(program) => program.load(),
        Program::SkLookup(program) => program.load(),
        Program::SkMsg(program) => program.load(),
        Program::SockOps(program) => program.load(),
        _ => bail!("it is of another type"),
    }
    .map_err(Into::into)
}

fn descriptor(program: &Program) -> Result<OwnedFd> {
    Ok(program.fd()?.as_fd().try_clone_to_owned()?)
}

/// Loads a program of an object that walks over what the kernel calls so. The kernel's types are the caller's, once for
/// all programs: they are megabytes.
pub(super) fn load_iterator(
    (ebpf, types): (&mut Ebpf, &Btf),
    name: &str,
    walks_over: &str,
) -> Result<OwnedFd> {
    let Program::Iter(program) = find(ebpf, name)? else {
        bail!("program {name} is of another type");
    };
    program
        .load(walks_over, types)
        .with_context(|| format!("load {name}"))?;
    Ok(program.fd()?.as_fd().try_clone_to_owned()?)
}

fn find<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program> {
    ebpf.program_mut(name)
        .with_context(|| format!("no program {name} in the object"))
}

/// A map of an object that no other agent has.
pub(super) fn own_map<K: Pod, V: Pod>(ebpf: &Ebpf, name: &str) -> Result<Table<K, V>> {
    let Some(Map::HashMap(map) | Map::Array(map)) = ebpf.map(name) else {
        bail!("no map {name} in the object");
    };
    Ok(Table::new(map.fd().as_fd().try_clone_to_owned()?)?)
}

#[cfg(test)]
mod tests;
