//! Acceleration, for pods that ask for it: callbacks on the pod's own cgroup store the sockets of both ends, and
//! a program on the map of these sockets runs for what they send. Pods that do not ask have nothing of it.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use aya::{Ebpf, programs::Program};
use aya_obj::generated::bpf_attach_type;
use sidetrack_common::{
    flow::{Flow, FlowKey},
    ids::NetnsCookie,
    names,
};

use super::{
    Datapath, attachments::pin_again, cgroup, maps::from_pin, pins::Pins, sys, table::Table,
};

/// The first kernel that accounts what is in a socket's queue past TCP (kernel commit 54f89b3178d5).
const SINCE: (u32, u32) = (6, 14);

/// The loaded programs, and the pods' links.
#[derive(Debug)]
pub struct Acceleration {
    /// The callbacks; or why there are none.
    callbacks: Result<OwnedFd, String>,
    links: HashMap<NetnsCookie, OwnedFd>,
    flows: Option<Table<FlowKey, Flow>>,
}

impl Acceleration {
    /// Loads the programs. Without them pods are intercepted all the same.
    pub(super) fn load(ebpf: &mut Ebpf, pins: &Pins) -> Self {
        Self {
            callbacks: load(ebpf, pins).map_err(|problem| format!("{problem:#}")),
            links: HashMap::new(),
            flows: from_pin(pins, names::FLOWS).ok(),
        }
    }

    /// A pod has left, or is not accelerated any more. Its open connections go on by TCP.
    pub(super) fn forget(&mut self, cookie: NetnsCookie) {
        if self.links.remove(&cookie).is_none() {
            return;
        }
        let Some(flows) = &self.flows else { return };
        let keys = flows.keys().unwrap_or_default().into_iter();
        for key in keys.filter(|key| key.netns == cookie.get()) {
            // One that is left makes room when another needs it.
            let _ = flows.remove(&key);
        }
    }
}

fn load(ebpf: &mut Ebpf, pins: &Pins) -> Result<OwnedFd> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let release = release.trim();
    ensure!(
        version(release).is_some_and(|version| version >= SINCE),
        "kernel {release} does not account what is in a socket's queue past TCP; Linux {}.{} and later do",
        SINCE.0,
        SINCE.1
    );
    let Some(Program::SkMsg(message)) = ebpf.program_mut("st_message") else {
        bail!("no program st_message in the object");
    };
    message.load().context("load st_message")?;
    let sockets = sys::open_pin(&pins.map(names::ACCELERATED))?;
    sys::attach_to_sockets(
        message.fd()?.as_fd(),
        sockets.as_fd(),
        bpf_attach_type::BPF_SK_MSG_VERDICT,
    )
    .context("attach st_message")?;
    let Some(Program::SockOps(callbacks)) = ebpf.program_mut("st_accelerate") else {
        bail!("no program st_accelerate in the object");
    };
    callbacks.load().context("load st_accelerate")?;
    Ok(callbacks.fd()?.as_fd().try_clone_to_owned()?)
}

/// Major and minor number of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
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
            return match fs::remove_file(&pin) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("remove {}", pin.display()))
                }
                _ => Ok(()),
            };
        }
        let callbacks = self.acceleration.callbacks.as_ref();
        let callbacks = callbacks.map_err(|problem| anyhow!("{problem}"))?;
        let path = self.own_cgroup(cookie).context(
            "that takes callbacks on the pod's own cgroup, and no cgroup has the pod's UID in its name",
        )?;
        let id = cgroup::id(path)?;
        if let Some(link) = self.acceleration.links.get(&cookie)
            && sys::link_cgroup(link.as_fd()).ok() == Some(id)
        {
            return Ok(());
        }
        let kind = bpf_attach_type::BPF_CGROUP_SOCK_OPS;
        let link = sys::link_create(callbacks.as_fd(), File::open(path)?.as_fd(), kind)
            .context("attach st_accelerate")?;
        pin_again(link.as_fd(), &pin)?;
        self.acceleration.links.insert(cookie, link);
        Ok(())
    }

    /// Replaces the program in the link that an earlier agent made for a pod. Without its cgroup the link is no
    /// use.
    pub(super) fn refresh_acceleration(&mut self, cookie: NetnsCookie) {
        let pin = self.pins.pod_acceleration(cookie.get());
        if let (Ok(link), Ok(callbacks)) = (sys::open_pin(&pin), &self.acceleration.callbacks)
            && sys::link_update(link.as_fd(), callbacks.as_fd()).is_ok()
        {
            self.acceleration.links.insert(cookie, link);
        }
    }
}

#[cfg(test)]
mod tests;
