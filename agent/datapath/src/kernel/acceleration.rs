//! Acceleration, for pods that ask for it: callbacks on the pod's own cgroup store the sockets of both ends, and
//! a program on the map of these sockets runs for what they send. Pods that do not ask have nothing of it.

use std::{
    collections::HashMap,
    fs::{self, File},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::bpf_attach_type;
use sidetrack_common::{
    flow::{Flow, FlowKey},
    ids::NetnsCookie,
    names,
};

use super::{
    Datapath,
    attachments::{attach_or_take, is_at, take, unpin},
    cgroup,
    maps::from_pin,
    objects::{self, Loader, OnDemand},
    pins::Pins,
    release, sys,
    table::Table,
};

/// The first kernel that accounts what is in a socket's queue past TCP (kernel commit 54f89b3178d5).
const SINCE: (u32, u32) = (6, 14);

/// Maps that are pinned while there are programs.
pub(super) const MAPS: [&str; 2] = [names::ACCELERATED, names::FLOWS];

/// The programs, and the pods' links.
#[derive(Debug)]
pub struct Acceleration {
    programs: OnDemand<Programs>,
    links: HashMap<NetnsCookie, OwnedFd>,
}

/// What is in the kernel while some pod is accelerated, or was and has open connections.
#[derive(Debug)]
struct Programs {
    callbacks: OwnedFd,
    flows: Table<FlowKey, Flow>,
    sockets: Table<FlowKey, u64>,
}

impl Acceleration {
    /// Nothing, unless an earlier agent has accelerated pods.
    pub(super) fn new(loader: &Loader) -> Self {
        let mut programs = OnDemand::Unloaded;
        if loader.pins.map(names::ACCELERATED).exists() {
            let _ = programs.get(|| load(loader));
        }
        Self {
            programs,
            links: HashMap::new(),
        }
    }

    /// A pod has departed, or is not accelerated any more. Its open connections continue by TCP.
    pub(super) fn forget(&mut self, cookie: NetnsCookie) {
        if self.links.remove(&cookie).is_none() {
            return;
        }
        let Some(Programs { flows, .. }) = self.programs.loaded() else {
            return;
        };
        let keys = flows.keys().unwrap_or_default().into_iter();
        for key in keys.filter(|key| key.netns == cookie.get()) {
            // One that remains makes room when another needs it.
            let _ = flows.remove(&key);
        }
    }

    /// Unloads the programs after the last pod, and after the last connection that was ever accelerated: what is in a
    /// socket's queue would be lost.
    fn unload(&mut self, pins: &Pins) -> Result<()> {
        let Some(Programs { sockets, .. }) = self.programs.loaded() else {
            return Ok(());
        };
        // Not by the links of this agent: those of an earlier one are adopted with their pods.
        let pods = pins.pinned_pods()?;
        let is_linked = pods.iter().any(|pod| pins.pod_acceleration(*pod).exists());
        if is_linked || !sockets.is_empty().context("look for accelerated sockets")? {
            return Ok(());
        }
        for name in MAPS {
            let path = pins.map(name);
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        self.programs = OnDemand::Unloaded;
        Ok(())
    }
}

/// Whether this kernel can accelerate connections.
///
/// # Errors
/// If it cannot, with the first release that can.
pub fn is_possible() -> Result<()> {
    let release = release::text()?;
    ensure!(
        release::parse(&release).is_some_and(|version| version >= SINCE),
        "kernel {release} does not account what is in a socket's queue past TCP; Linux {}.{} and later do",
        SINCE.0,
        SINCE.1
    );
    Ok(())
}

fn load(loader: &Loader) -> Result<Programs> {
    is_possible()?;
    let mut ebpf = loader.load(objects::ACCELERATE, &MAPS)?;
    let message = objects::load_program(&mut ebpf, "st_message")?;
    let sockets: Table<FlowKey, u64> = from_pin(&loader.pins, names::ACCELERATED)?;
    sys::attach_to_sockets(
        message.as_fd(),
        sockets.fd(),
        bpf_attach_type::BPF_SK_MSG_VERDICT,
    )
    .context("attach st_message")?;
    Ok(Programs {
        callbacks: objects::load_program(&mut ebpf, "st_accelerate")?,
        flows: from_pin(&loader.pins, names::FLOWS)?,
        sockets,
    })
}

impl Datapath {
    /// Has a pod's new connections accelerated, or not.
    ///
    /// # Errors
    /// If they are to be, and cannot be.
    pub fn set_acceleration(&mut self, cookie: NetnsCookie, wanted: bool) -> Result<()> {
        let pin = self.pins.pod_acceleration(cookie.get());
        if !wanted {
            self.acceleration.forget(cookie);
            return unpin(&pin);
        }
        let path = self
            .own_cgroup(cookie)
            .context("that takes callbacks on the pod's own cgroup, and no cgroup has the pod's UID in its name")?
            .to_owned();
        let id = cgroup::id(&path)?;
        let loader = &self.loader;
        let callbacks = &self.acceleration.programs.get(|| load(loader))?.callbacks;
        if let Some(link) = self.acceleration.links.get(&cookie)
            && is_at(link.as_fd(), id)
        {
            return Ok(());
        }
        let kind = bpf_attach_type::BPF_CGROUP_SOCK_OPS;
        let cgroup = File::open(&path)?;
        let is_there = |link: BorrowedFd<'_>| is_at(link, id);
        let link = attach_or_take(callbacks.as_fd(), cgroup.as_fd(), kind, &pin, is_there)
            .context("attach st_accelerate")?;
        self.acceleration.links.insert(cookie, link);
        Ok(())
    }

    /// Unloads the programs when they are out of use. To be called every few seconds.
    ///
    /// # Errors
    /// If it is unknown whether they are, or a map cannot be unpinned.
    pub fn unload_acceleration(&mut self) -> Result<()> {
        self.acceleration.unload(&self.pins)
    }

    /// Replaces the program in the link that an earlier agent made for a pod. Without its cgroup the link is no
    /// use.
    pub(super) fn refresh_acceleration(&mut self, cookie: NetnsCookie) {
        let pin = self.pins.pod_acceleration(cookie.get());
        let loader = &self.loader;
        if pin.exists()
            && let Ok(Programs { callbacks, .. }) = self.acceleration.programs.get(|| load(loader))
            && let Some(link) = take(callbacks.as_fd(), &pin, |_| true)
        {
            self.acceleration.links.insert(cookie, link);
        }
    }
}
