//! Looks at what other programs or people may change and belongs to no pod: pins, hooks, the cgroup. Puts it right.

use std::{
    fs::File,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use sidetrack_common::names;
use sidetrack_reconcile::repairs::{CgroupState, Findings, LinkId, LinkLoss};

use super::{
    Datapath,
    attachments::{Attachments, is_pinned, pin_again},
    cgroup, sys,
};

impl Datapath {
    /// Adds what is not as it was made.
    pub fn look(&self, findings: &mut Findings) {
        let Self {
            pins, attachments, ..
        } = self;
        for (name, _, id) in &attachments.maps {
            let path = pins.map(name);
            if !is_pinned(&path, *id, |pin| Ok(sys::map_info(pin)?.id)) {
                findings.maps.push((name, path));
            }
        }
        match attachments.inbound_is_active() {
            Ok(is_active) => findings.inbound_is_inactive = !is_active,
            Err(problem) => findings
                .problems
                .push(format!("look for the active inbound program: {problem:#}")),
        }
        findings.cgroup = attachments.cgroup_state();
        for attached in &attachments.hooks {
            let Some(link) = &attached.link else { continue };
            let pin = pins.link(attached.hook.name);
            let loss = link.loss(link.cgroup() == attachments.cgroup_id, &pin);
            let id = LinkId::Hook(attached.hook.name);
            findings.links.extend(loss.map(|loss| (id, loss)));
        }
        // With another directory made in its place, anybody could have its lock.
        if !self.lock.is_on(pins.root()) {
            findings.directory = Some(pins.root().to_owned());
        }
    }

    /// Pins a map again.
    ///
    /// # Errors
    /// If it cannot be pinned.
    pub fn pin_map(&self, name: &str, path: &Path) -> Result<()> {
        let mut maps = self.attachments.maps.iter();
        let map = maps.find(|(known, ..)| *known == name);
        let (_, map, _) = map.context("there is no such map")?;
        pin_again(map.as_fd(), path)
    }

    /// Activates the program that decides about inbound connections.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn activate_inbound(&self) -> Result<()> {
        let program = self.attachments.inbound.as_fd();
        let number = program.as_raw_fd().to_ne_bytes();
        let map = self.attachments.inbound_map()?;
        sys::map_update(map, &SLOT.to_ne_bytes(), &number, 0)
            .context("activate the inbound program")
    }

    /// Follows the pods' cgroup. If another one is in its place all hooks are attached there.
    ///
    /// # Errors
    /// If a hook cannot be attached; the others may be.
    pub fn follow_cgroup(&mut self, state: &CgroupState) -> Result<()> {
        match state {
            CgroupState::Unchanged | CgroupState::Gone(_) => Ok(()),
            CgroupState::Moved { now, .. } => {
                self.attachments.cgroup.clone_from(now);
                Ok(())
            }
            CgroupState::Recreated { before, now } => self.attach_to_cgroup(now, before == now),
        }
    }

    /// Attaches all hooks to the root if a pod's cgroup is there: a node whose cgroup driver was changed has pods in two.
    /// Answers whether they are there now.
    ///
    /// # Errors
    /// If a hook cannot be attached; the others may be.
    pub(super) fn move_to_root(&mut self, uid: &str) -> Result<bool> {
        if self.attachments.given.is_some() {
            return Ok(false);
        }
        let root = cgroup::mount()?;
        if root == self.attachments.cgroup || !cgroup::of_pods_below(&root).contains_key(uid) {
            return Ok(false);
        }
        tracing::warn!(
            uid,
            before = %self.attachments.cgroup.display(),
            cgroup = %root.display(),
            "a pod is in another cgroup than those before: the hooks are attached to the root"
        );
        self.attach_to_cgroup(&root, false)?;
        self.keep_dns()?;
        Ok(true)
    }

    fn attach_to_cgroup(&mut self, path: &Path, is_same_path: bool) -> Result<()> {
        let Self {
            pins, attachments, ..
        } = self;
        let id = cgroup::id(path)?;
        let target = File::open(path).with_context(|| format!("open {}", path.display()))?;
        for attached in &mut attachments.hooks {
            // Attached before another one failed: two sets of hooks must not decide for one socket.
            let link = attached.link.as_ref();
            if link.is_none_or(|link| link.cgroup() == id) {
                continue;
            }
            let earlier = attached
                .attach_anew(pins, &target)
                .with_context(|| format!("attach {} to {}", attached.hook.name, path.display()))?;
            // Two sets of hooks must not decide for one socket: cgroups of one path are never
            // above or below each other.
            if is_same_path {
                attachments.removed.extend(earlier);
            }
        }
        attachments.cgroup = path.to_owned();
        attachments.cgroup_id = id;
        Ok(())
    }

    /// Attaches a hook again, puts its program into its place, or pins it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn restore_hook(&mut self, name: &str, loss: &LinkLoss) -> Result<()> {
        let Self {
            pins, attachments, ..
        } = self;
        let mut hooks = attachments.hooks.iter_mut();
        let attached = hooks.find(|it| it.hook.name == name);
        let attached = attached.context("there is no such hook")?;
        if *loss == LinkLoss::Detached {
            let path = &attachments.cgroup;
            let target = File::open(path).with_context(|| format!("open {}", path.display()))?;
            return attached.attach_anew(pins, &target).map(drop);
        }
        match &attached.link {
            Some(link) => link.restore(loss, attached.program.as_fd(), &pins.link(name)),
            None => Ok(()),
        }
    }

    /// Locks the directory of pins that was made anew.
    ///
    /// # Errors
    /// If another agent has locked it.
    pub fn lock_again(&mut self) -> Result<()> {
        let root = self.pins.root();
        self.lock = self.pins.try_lock()?.with_context(|| {
            format!(
                "{} was made anew, and another sidetrack agent uses it now: stop one of the two agents",
                root.display()
            )
        })?;
        Ok(())
    }

    /// Closes links to removed cgroups that no socket is in any more.
    pub fn close_removed(&mut self) {
        self.attachments.removed.retain(|link| link.cgroup() != 0);
    }
}

/// The only one of the map of the inbound program.
const SLOT: u32 = 0;

impl Attachments {
    fn inbound_map(&self) -> Result<BorrowedFd<'_>> {
        let mut maps = self.maps.iter();
        let map = maps.find(|(name, ..)| *name == names::INBOUND_PROGRAM);
        Ok(map.context("there is no such map")?.1.as_fd())
    }

    /// While no program is active, inbound connections of all pods are refused.
    fn inbound_is_active(&self) -> Result<bool> {
        let mut found = [0; size_of::<u32>()];
        let wanted = sys::program_id(self.inbound.as_fd())?;
        let is_there = sys::map_lookup(self.inbound_map()?, &SLOT.to_ne_bytes(), &mut found)?;
        Ok(is_there && u32::from_ne_bytes(found) == wanted)
    }

    fn cgroup_state(&self) -> CgroupState {
        let id_at = |path: PathBuf| cgroup::id(&path).map(|id| (path, id));
        let found = cgroup::find(Some(&self.cgroup)).and_then(id_at);
        let before = self.cgroup.clone();
        let wanted = cgroup::find(self.given.as_deref());
        if found.is_ok_and(|(_, id)| id == self.cgroup_id) {
            return match wanted {
                // Pods run in another one as well.
                Ok(now) if now != before && before.starts_with(&now) => {
                    CgroupState::Recreated { before, now }
                }
                _ => CgroupState::Unchanged,
            };
        }
        match wanted.and_then(id_at) {
            Ok((now, id)) if id == self.cgroup_id => CgroupState::Moved { before, now },
            Ok((now, _)) => CgroupState::Recreated { before, now },
            Err(error) => CgroupState::Gone(format!(
                "the pods' cgroup {} is gone, so that pods in another are not intercepted; make it again, or restart the agent with --cgroup PATH: {error:#}",
                before.display()
            )),
        }
    }
}
