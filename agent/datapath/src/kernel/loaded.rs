//! Everything of the core that the kernel may refuse, loaded before any of it is attached.

use std::{os::fd::OwnedFd, sync::Arc};

use anyhow::Result;
use aya::Ebpf;

use super::{
    adoption::Adoption,
    hooks::{CGROUP_HOOKS, INBOUND_PROGRAM},
    inbound::InboundTemplate,
    kernel_layout,
    kernel_log::LogLevel,
    maps::Maps,
    objects::{Loader, load_program},
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
        let hooks = CGROUP_HOOKS.iter();
        let hooks = hooks.map(|hook| load_program(&mut ebpf, &hook.program()));
        let hooks = hooks.collect::<Result<_>>()?;
        let inbound_program = load_program(&mut ebpf, INBOUND_PROGRAM)?;
        let inbound = InboundTemplate::new(pins, &ebpf, level)?;
        let adoption = Adoption::load(&mut ebpf, pins)?.into();
        let tasks = Tasks::load(&mut ebpf)?.into();
        // No connection depends on it.
        let queues = Queues::load(&mut ebpf, pins)
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
            queues,
        })
    }
}
