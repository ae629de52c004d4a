//! Where the connection callbacks (sockops) are attached.
//!
//! The kernel runs them about seven times for each connection of every socket below their cgroup, whether
//! its pod is enrolled or not. They are therefore attached to the cgroups of enrolled pods. If a pod's
//! cgroup is not known, or one of its processes or its proxy is elsewhere, they are attached to the cgroup of all pods as
//! well. Where they then run twice, the second time changes nothing but a listener's second slot.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use sidetrack_common::ids::NetnsCookie;
use sidetrack_reconcile::repairs::{LinkId, LinkLoss};

use super::{
    Datapath,
    attachments::{AttachedHook, Attachments, Link, attach_or_take, is_at, pin_again, take, unpin},
    cgroup as cgroups,
    hooks::CALLBACKS,
    pins::Pins,
};

/// Links to the pods' own cgroups.
#[derive(Debug, Default)]
pub struct Callbacks {
    own: HashMap<NetnsCookie, OwnCgroup>,
    /// Pods that have processes in other cgroups than their own.
    pub(super) elsewhere: BTreeSet<NetnsCookie>,
    /// Links of departed pods, and since when: their last redirected connections may still be between
    /// SYN and accept.
    parting: Vec<(Instant, Link)>,
    /// The pods' cgroups as they were last listed, by UID.
    cgroups: HashMap<String, PathBuf>,
}

/// How long such links are kept. Over loopback a handshake takes microseconds, unless the sidecar's backlog
/// is full.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct OwnCgroup {
    link: Link,
    /// `None` for a pod of an earlier agent that this one has not enrolled yet.
    path: Option<PathBuf>,
}

impl OwnCgroup {
    /// Whether the pod's cgroup, which may have been made anew, has the program.
    fn is_attached(&self) -> bool {
        let cgroup = self.path.as_deref().map(cgroups::id);
        let is_there = cgroup.is_some_and(|id| id.is_ok_and(|id| id == self.link.cgroup()));
        is_there && self.link.has_its_program()
    }
}

impl Callbacks {
    /// A pod has departed.
    pub(super) fn release(&mut self, cookie: NetnsCookie) {
        self.elsewhere.remove(&cookie);
        let departed = self.own.remove(&cookie);
        self.parting
            .extend(departed.map(|it| (Instant::now(), it.link)));
    }
}

/// Whether they have to be attached to the cgroup of all pods before anything is known of the pods: as with
/// an earlier agent, and for pods of that agent without a link of their own.
pub(super) fn needed_for_all(pins: &Pins) -> Result<bool> {
    let is_there = pins.link(CALLBACKS).exists();
    let pods = pins.pinned_pods()?;
    let has_own = |netns: &u64| pins.pod_callbacks(*netns).exists();
    Ok(is_there || !pods.iter().all(has_own))
}

impl Attachments {
    fn has_callbacks_for_all(&self) -> bool {
        let mut hooks = self.hooks.iter();
        hooks.any(|it| it.hook.name == CALLBACKS && it.link.is_some())
    }

    fn callbacks_hook(&mut self) -> &mut AttachedHook {
        let mut hooks = self.hooks.iter_mut();
        hooks
            .find(|attached| attached.hook.name == CALLBACKS)
            .expect("it is one of the hooks")
    }
}

impl Datapath {
    /// Attaches all hooks to a pod's cgroup as well, if it is not below theirs.
    ///
    /// # Errors
    /// If a hook cannot be attached; the others may be.
    pub fn cover(&mut self, uid: Option<&str>) -> Result<()> {
        let Some(uid) = uid else { return Ok(()) };
        let cgroups = &self.attachments.callbacks.cgroups;
        if !cgroups.get(uid).is_some_and(|path| path.is_dir()) {
            self.list_cgroups();
        }
        if !self.attachments.callbacks.cgroups.contains_key(uid) && self.move_to_root(uid)? {
            self.list_cgroups();
        }
        Ok(())
    }

    fn list_cgroups(&mut self) {
        self.attachments.callbacks.cgroups = cgroups::of_pods_below(self.cgroup());
    }

    /// Attaches the callbacks for a pod: to its own cgroup if that is known, else to that of all pods.
    ///
    /// # Errors
    /// If they cannot be attached to the cgroup of all pods.
    pub fn attach_callbacks(&mut self, cookie: NetnsCookie, uid: Option<&str>) -> Result<()> {
        let cgroups = &self.attachments.callbacks.cgroups;
        if let Some(path) = uid.and_then(|uid| cgroups.get(uid)).cloned() {
            match self.attach_to_own(cookie, &path) {
                Ok(()) => return Ok(()),
                Err(problem) => {
                    tracing::debug!(%cookie, "attach to the pod's own cgroup: {problem:#}");
                }
            }
        }
        self.attach_for_all()
    }

    fn attach_to_own(&mut self, cookie: NetnsCookie, path: &Path) -> Result<()> {
        let pin = self.pins.pod_callbacks(cookie.get());
        let hook = self.attachments.callbacks_hook();
        let id = cgroups::id(path)?;
        let cgroup = File::open(path)?;
        let (program, kind) = (hook.program.as_fd(), hook.hook.attach_type);
        let link = attach_or_take(program, cgroup.as_fd(), kind, &pin, |link| is_at(link, id))?;
        let own = OwnCgroup {
            link: Link::new(link)?,
            path: Some(path.to_owned()),
        };
        self.attachments.callbacks.own.insert(cookie, own);
        Ok(())
    }

    fn attach_for_all(&mut self) -> Result<()> {
        let cgroup = self.attachments.cgroup.clone();
        let hook = self.attachments.callbacks_hook();
        if hook.link.is_some() {
            return Ok(());
        }
        let attach = || format!("attach {CALLBACKS} to {}", cgroup.display());
        let target = File::open(&cgroup).with_context(attach)?;
        hook.attach_anew(&self.pins, &target).with_context(attach)?;
        Ok(())
    }

    /// Replaces the program in the link that an earlier agent made to a pod's cgroup.
    pub(super) fn refresh_callbacks(&mut self, cookie: NetnsCookie) -> Result<()> {
        let program = self.attachments.callbacks_hook().program.as_fd();
        let pin = self.pins.pod_callbacks(cookie.get());
        // Without its cgroup the link is no use; nor has the pod a process that needs it.
        if let Some(link) = take(program, &pin, |_| true) {
            let link = Link::new(link)?;
            let own = OwnCgroup { link, path: None };
            self.attachments.callbacks.own.insert(cookie, own);
        }
        Ok(())
    }

    /// The cgroup of a pod's own that the callbacks are attached to.
    #[must_use]
    pub fn own_cgroup(&self, cookie: NetnsCookie) -> Option<&Path> {
        self.attachments.callbacks.own.get(&cookie)?.path.as_deref()
    }

    /// What is wrong with the callbacks of these pods, each with its UID where that is known.
    pub fn callback_losses(
        &mut self,
        pods: &[(NetnsCookie, Option<String>)],
    ) -> Vec<(LinkId, LinkLoss)> {
        let own = &self.attachments.callbacks.own;
        let has_own = |cookie: &NetnsCookie| own.get(cookie).is_some_and(|own| own.path.is_some());
        let (own, others): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| has_own(&pod.0));
        let own = own.into_iter().filter_map(|(cookie, _)| {
            let loss = self.own_callback_loss(*cookie)?;
            Some((LinkId::Callbacks(*cookie), loss))
        });
        let mut losses: Vec<_> = own.collect();
        let is_elsewhere = |loss: &LinkLoss| !matches!(loss, LinkLoss::Unpinned(_));
        if losses.iter().any(|(_, loss)| is_elsewhere(loss))
            || others.iter().any(|(_, uid)| uid.is_some())
        {
            self.list_cgroups();
        }
        // Without a cgroup of its own a pod needs them on that of all pods.
        let cgroups = &self.attachments.callbacks.cgroups;
        let for_all = self.attachments.has_callbacks_for_all();
        let is_known =
            |uid: &Option<String>| uid.as_ref().is_some_and(|it| cgroups.contains_key(it));
        let missing = others
            .into_iter()
            .filter(|(_, uid)| is_known(uid) || !for_all);
        losses.extend(missing.map(|(cookie, _)| (LinkId::Callbacks(*cookie), LinkLoss::Missing)));
        losses
    }

    fn own_callback_loss(&self, cookie: NetnsCookie) -> Option<LinkLoss> {
        let own = self.attachments.callbacks.own.get(&cookie)?;
        let pin = self.pins.pod_callbacks(cookie.get());
        let loss = own.link.loss(own.is_attached(), &pin)?;
        let is_gone = own.path.as_deref().is_some_and(cgroups::is_gone);
        (!is_gone).then_some(loss)
    }

    /// Attaches or pins the callbacks of a pod again. Those that cannot be on its own cgroup are attached to that of
    /// all pods.
    ///
    /// # Errors
    /// If they cannot be attached there either, or not be pinned.
    pub fn restore_callbacks(
        &mut self,
        cookie: NetnsCookie,
        uid: Option<&str>,
        loss: &LinkLoss,
    ) -> Result<()> {
        let own = self.attachments.callbacks.own.get(&cookie);
        if let (LinkLoss::Unpinned(pin), Some(own)) = (loss, own) {
            return pin_again(own.link.fd.as_fd(), pin);
        }
        let before = self.attachments.callbacks.own.remove(&cookie);
        // Sockets that were made in a cgroup that is gone still have its programs.
        self.attachments.removed.extend(before.map(|own| own.link));
        self.attach_callbacks(cookie, uid)
    }

    /// Notes which pods have processes in other cgroups than their own.
    ///
    /// # Errors
    /// If the callbacks cannot be attached to the cgroup of all pods.
    pub fn note_elsewhere(&mut self, pods: BTreeSet<NetnsCookie>) -> Result<()> {
        self.attachments.callbacks.elsewhere = pods;
        if self.attachments.callbacks.elsewhere.is_empty() {
            return Ok(());
        }
        self.attach_for_all()
    }

    /// Whether every pod that has links is enrolled by this agent, on a cgroup of its own.
    pub(super) fn has_all_attached(&self) -> Result<bool> {
        let own = &self.attachments.callbacks.own;
        let pods = self.attached_pods()?;
        let is_known = |pod| own.get(pod).is_some_and(|own| own.path.is_some());
        Ok(pods.iter().all(is_known))
    }

    /// Detaches the callbacks from the cgroup of all pods when no pod needs them there.
    ///
    /// # Errors
    /// If the pods or the pin cannot be looked at.
    pub fn release_callbacks(&mut self) -> Result<()> {
        let callbacks = &mut self.attachments.callbacks;
        callbacks
            .parting
            .retain(|(since, _)| since.elapsed() < GRACE);
        let is_needed = !callbacks.elsewhere.is_empty();
        if is_needed || !self.attachments.has_callbacks_for_all() {
            return Ok(());
        }
        if !self.has_all_attached()? {
            return Ok(());
        }
        let Some(link) = self.attachments.callbacks_hook().link.take() else {
            return Ok(());
        };
        let pin = self.pins.link(CALLBACKS);
        if let Err(error) = unpin(&pin) {
            self.attachments.callbacks_hook().link = Some(link);
            return Err(error);
        }
        tracing::info!(
            "all pods have {CALLBACKS} on their own cgroups: removed it from that of all pods"
        );
        Ok(())
    }
}
