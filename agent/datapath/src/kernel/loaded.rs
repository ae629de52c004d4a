//! Everything of the core that the kernel may refuse, loaded before any of it is attached.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use aya::{Btf, Ebpf};
use bytemuck::Zeroable as _;
use sidetrack_common::conn::WantedListener;

use super::{
    adoption::Adoption,
    charges::Charges,
    hooks::{CGROUP_HOOKS, Hook, INBOUND_PROGRAM},
    inbound::InboundTemplate,
    kernel_layout,
    kernel_log::LogLevel,
    maps::Maps,
    objects::{Loader, load_programs},
    pins::Pins,
    queues::Queues,
    tasks::Tasks,
};

/// Programs and maps of the core. The maps are pinned.
pub(super) struct Loaded {
    pub(super) loader: Loader,
    pub(super) ebpf: Ebpf,
    pub(super) maps: Maps,
    /// One for each of [`CGROUP_HOOKS`].
    pub(super) hooks: Vec<OwnedFd>,
    pub(super) inbound_program: OwnedFd,
    pub(super) inbound: InboundTemplate,
    pub(super) adoption: Arc<Adoption>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) charges: Charges,
    pub(super) queues: Option<Arc<Queues>>,
}

impl Loaded {
    /// Loads it.
    ///
    /// # Errors
    /// If the kernel refuses a map or a program.
    pub(super) fn new(pins: &Pins, level: LogLevel) -> Result<Self> {
        let loader = Loader {
            pins: pins.clone(),
            offsets: kernel_layout::offsets()?,
        };
        let mut ebpf = loader.core(level)?;
        let maps = Maps::open(pins)?;
        let programs = CGROUP_HOOKS.iter().map(Hook::program);
        let programs: Vec<_> = programs.chain([INBOUND_PROGRAM.into()]).collect();
        let mut hooks = load_programs(&mut ebpf, &programs)?;
        let inbound_program = hooks.pop().expect("it is the last of them");
        let inbound = InboundTemplate::new(pins, &ebpf, level)?;
        let types = Btf::from_sys_fs().context("read the kernel's BTF")?;
        let adoption = Adoption::load((&mut ebpf, &types), pins)?.into();
        let tasks = Tasks::load((&mut ebpf, &types))?.into();
        let charges = Charges::load((&mut ebpf, &types), pins)?;
        // No connection depends on it.
        let queues = Queues::load((&mut ebpf, &types), pins)
            .inspect_err(|error| tracing::warn!("sidecars that hang are not seen: {error:#}"))
            .ok()
            .map(Arc::new);
        Ok(Self {
            loader,
            ebpf,
            maps,
            hooks,
            inbound_program,
            inbound,
            adoption,
            tasks,
            charges,
            queues,
        })
    }

    /// Does with it what an agent does once it is attached: reads, writes and lists maps, looks at processes and at their
    /// open files. What the kernel refuses then would leave hooks that no agent serves.
    ///
    /// # Errors
    /// If the kernel refuses any of that.
    pub(super) fn try_out(&self) -> Result<()> {
        // Sockets have higher cookies: it is looked for and not found.
        const NO_SOCKET: u64 = 0;
        let until = Instant::now() + Duration::from_millis(200);
        self.maps.choose_target_seed()?;
        self.maps.recount_handshakes()?;
        self.charges.try_out().context("walk over records")?;
        self.adoption.listeners.keys().context("list listeners")?;
        let counted = self.tasks.count(&BTreeMap::from([(1, None)]), 0);
        counted.context("look at processes")?;
        let sockets = [(NO_SOCKET, WantedListener::zeroed())];
        let own = [std::process::id() as i32];
        let searched = self.adoption.run(&sockets, Some(&own), until);
        searched.context("look at the open files of a process")?;
        Ok(())
    }
}
