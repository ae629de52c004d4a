//! The datapath: the programs and their maps, loaded and attached to the pods' cgroup.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use sidetrack_common::ids::NetnsCookie;

use super::{
    acceleration::Acceleration,
    adoption::Adoption,
    attachments::{AttachedHook, Attachments, attach_or_take, is_at},
    callbacks, cgroup as cgroups,
    charges::Charges,
    connection_counts::RemovedCounts,
    dns::Dns,
    exclusive,
    forwarding::Forwarding,
    hooks::{CALLBACKS, CGROUP_HOOKS},
    inbound::InboundTemplate,
    kernel_log::{KernelLog, LogLevel},
    layouts::{remove_abandoned_trials, remove_own},
    loaded::Loaded,
    maps::Maps,
    objects::Loader,
    pins::{Lock, Pins},
    queues::Queues,
    sys,
    tasks::Tasks,
};

/// The network namespace of the node's first process.
pub const NODE_NETNS: &str = "/proc/1/ns/net";

/// The attached programs and their maps. Dropping it changes nothing for traffic: everything that
/// matters is pinned.
#[derive(Debug)]
pub struct Datapath {
    pub(super) pins: Pins,
    pub(super) loader: Loader,
    pub(super) lock: Lock,
    /// The shared maps.
    pub maps: Maps,
    /// The counts of departed pods.
    pub removed_counts: Arc<RemovedCounts>,
    /// For listeners that are open already.
    pub adoption: Arc<Adoption>,
    /// Says which processes are in which network namespaces.
    pub tasks: Arc<Tasks>,
    /// Corrects the counts of records.
    pub charges: Charges,
    /// Says which listeners have connections that wait; `None` if this kernel cannot.
    pub queues: Option<Arc<Queues>>,
    pub(super) inbound: InboundTemplate,
    pub(super) acceleration: Acceleration,
    pub(super) dns: Dns,
    pub(super) forwarding: Forwarding,
    pub(super) attachments: Attachments,
    /// Path of the node's network namespace.
    pub node_netns: PathBuf,
}

impl Datapath {
    /// Loads the programs, creates or takes over the pinned maps, and attaches the cgroup hooks or
    /// replaces the programs of those that are attached. Should the cgroup vanish it is looked for
    /// again, as it was `given`.
    ///
    /// # Errors
    /// If the kernel refuses any of that. A start from nothing leaves nothing then: no agent would serve its hooks.
    pub fn open(
        pins: Pins,
        cgroup: &Path,
        given: Option<&Path>,
        level: LogLevel,
    ) -> Result<(Self, KernelLog)> {
        let lock = pins.lock()?;
        if let Err(error) = remove_abandoned_trials(&pins) {
            tracing::warn!("what a doctor made that was killed stays: {error:#}");
        }
        let takes_over = pins.may_have_pins();
        let opened = Self::open_locked(pins.clone(), lock, (cgroup, given), level);
        opened.map_err(|error| match pins.try_lock() {
            Ok(Some(_lock)) if !takes_over => match remove_own(&pins) {
                Ok(()) => error,
                Err(remaining) => {
                    error.context(format!("{remaining:#}; `sidetrack cleanup` removes it"))
                }
            },
            _ => error,
        })
    }

    fn open_locked(
        pins: Pins,
        lock: Lock,
        (cgroup, given): (&Path, Option<&Path>),
        level: LogLevel,
    ) -> Result<(Self, KernelLog)> {
        let loaded = Loaded::new(&pins, level)?;
        loaded.try_out()?;
        let Loaded {
            loader,
            mut ebpf,
            maps,
            hooks: programs,
            inbound_program,
            inbound,
            adoption,
            tasks,
            charges,
            queues,
        } = loaded;
        let target = File::open(cgroup)
            .with_context(|| format!("open the pods' cgroup {}", cgroup.display()))?;
        let cgroup_id = cgroups::id(cgroup)?;
        let mut hooks = Vec::new();
        for (hook, program) in CGROUP_HOOKS.iter().zip(&programs) {
            let link = if hook.name == CALLBACKS && !callbacks::needed_for_all(&pins)? {
                None
            } else {
                let (at, pin) = (target.as_fd(), pins.link(hook.name));
                let is_there = |link: BorrowedFd<'_>| is_at(link, cgroup_id);
                let link = attach_or_take(program.as_fd(), at, hook.attach_type, &pin, is_there);
                Some(link.with_context(|| {
                    exclusive::failed_attachment(hook.name, cgroup, hook.attach_type)
                })?)
            };
            hooks.push(AttachedHook::new(hook, program.as_fd(), link)?);
        }
        // From here on all programs count in the same way, also where another build counted otherwise.
        maps.recount_handshakes()?;
        let attachments =
            Attachments::new(&pins, hooks, inbound_program, (cgroup, cgroup_id), given)?;
        let acceleration = Acceleration::new(&loader);
        let dns = Dns::default();
        let forwarding = Forwarding::default();
        let log = KernelLog::of(&mut ebpf)?;
        drop(ebpf);
        sys::trim_heap();
        let datapath = Self {
            pins,
            loader,
            lock,
            maps,
            removed_counts: Arc::default(),
            adoption,
            tasks,
            charges,
            queues,
            inbound,
            acceleration,
            dns,
            forwarding,
            attachments,
            node_netns: NODE_NETNS.into(),
        };
        datapath.activate_inbound()?;
        Ok((datapath, log))
    }

    /// The cgroup the hooks are attached to.
    pub fn cgroup(&self) -> &Path {
        self.attachments.cgroup()
    }

    /// Cookies of the pods that are attached, by this or an earlier agent.
    pub fn attached_pods(&self) -> Result<Vec<NetnsCookie>> {
        let pinned = self.pins.pinned_pods()?;
        Ok(pinned.into_iter().map(NetnsCookie::new).collect())
    }
}
