//! The pods' sk_lookup links: one for each network namespace.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd},
};

use anyhow::{Context as _, Result};
use aya_obj::generated::bpf_attach_type::BPF_SK_LOOKUP;
use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_reconcile::repairs::{LinkId, LinkLoss};

use super::{
    Datapath,
    attachments::{Link, attach_or_take, pin_again},
    sys,
};

impl Datapath {
    /// Attaches a pod's sk_lookup program to its network namespace, or replaces the one that is attached. One of this agent's
    /// stays, of a take-over or of a pod that departs: the kernel needs about a millisecond for another.
    pub fn attach_pod(&mut self, cookie: NetnsCookie, netns: BorrowedFd<'_>) -> Result<()> {
        let path = self.pins.pod_link(cookie.get());
        let link = self.attachments.pods.get(&cookie);
        if link.is_some_and(|link| link.is_in_netns() && link.is_pinned(&path)) {
            return Ok(());
        }
        let program = self.inbound.instance(cookie)?;
        // The directory is that of this namespace.
        let link = attach_or_take(program.as_fd(), netns, BPF_SK_LOOKUP, &path, |_| true)
            .context("attach sk_lookup to the pod's network namespace")?;
        self.attachments.pods.insert(cookie, Link::new(link)?);
        Ok(())
    }

    /// Replaces the program of a pod that was enrolled by an earlier agent. `false` when its link is attached nowhere: its
    /// network namespace is gone, or somebody has detached it (`bpf_netns_link_update_prog` answers both alike).
    pub fn refresh_pod(&mut self, cookie: NetnsCookie) -> Result<bool> {
        self.refresh_callbacks(cookie)?;
        self.refresh_acceleration(cookie);
        let link = sys::open_pin(&self.pins.pod_link(cookie.get()))
            .with_context(|| format!("open the sk_lookup link of netns {cookie}"))?;
        let program = self.inbound.instance(cookie)?;
        match sys::link_update(link.as_fd(), program.as_fd()) {
            Ok(()) => {
                self.attachments.pods.insert(cookie, Link::new(link)?);
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(false),
            Err(error) => Err(error).context("replace the pod's sk_lookup program"),
        }
    }

    /// Detaches a pod's programs.
    pub fn detach_pod(&mut self, cookie: NetnsCookie) -> Result<()> {
        self.attachments.pods.remove(&cookie);
        self.attachments.callbacks.release(cookie);
        self.acceleration.forget(cookie);
        self.dns.forget(cookie);
        let link = self.pins.pod_link(cookie.get());
        let dir = link.parent().expect("pod links are in directories");
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", dir.display()))
            }
            _ => Ok(()),
        }
    }

    /// What is wrong with the pods' links. One that another program is in counts as detached.
    pub fn inbound_losses(&self, with_pins: bool) -> impl Iterator<Item = (LinkId, LinkLoss)> {
        self.attachments
            .pods
            .iter()
            .filter_map(move |(cookie, link)| {
                let loss = if !link.is_in_netns() {
                    Some(LinkLoss::Detached)
                } else if with_pins {
                    link.loss(true, &self.pins.pod_link(cookie.get()))
                } else {
                    None
                };
                Some((LinkId::Inbound(*cookie), loss?))
            })
    }

    /// Whether a pod's link is in its namespace, with the program that it was given.
    pub fn is_attached(&self, cookie: NetnsCookie, inode: NetnsInode) -> bool {
        self.attachments.pods.get(&cookie).is_some_and(|link| {
            sys::link_netns(link.fd.as_fd()).is_ok_and(|found| found == inode.get())
                && link.has_its_program()
        })
    }

    /// Pins a pod's link again, or attaches its program anew in the place of one that was detached or has another
    /// program. Answers whether that was necessary.
    ///
    /// # Errors
    /// If it cannot be attached or pinned.
    pub fn restore_inbound(
        &mut self,
        cookie: NetnsCookie,
        netns: BorrowedFd<'_>,
        loss: &LinkLoss,
    ) -> Result<bool> {
        let link = self.attachments.pods.get(&cookie);
        if let (LinkLoss::Unpinned(pin), Some(link)) = (loss, link) {
            pin_again(link.fd.as_fd(), pin)?;
            return Ok(true);
        }
        if link.is_some_and(Link::is_in_netns) {
            return Ok(false);
        }
        self.attach_pod(cookie, netns)?;
        Ok(true)
    }
}
