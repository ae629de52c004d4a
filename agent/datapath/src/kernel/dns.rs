//! DNS capture over UDP, for pods that ask for it: programs on the pod's own cgroup, or on that of all pods where the
//! pod's is not known or has not all of its processes. Other pods have nothing of it.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use sidetrack_common::ids::NetnsCookie;
use sidetrack_reconcile::repairs::{LinkId, LinkLoss};

use super::{
    Datapath,
    attachments::{self, Link, attach_or_take, is_at},
    cgroup,
    hooks::{DNS_HOOKS, Hook},
    objects::{self, Loader, OnDemand},
    pins::Pins,
    probe, sys,
};

/// The programs, and where they are attached. Pods of an earlier agent keep its programs until they are enrolled again.
#[derive(Debug, Default)]
pub struct Dns {
    programs: OnDemand<[OwnedFd; DNS_HOOKS.len()]>,
    /// Pods that have queries captured.
    pods: BTreeSet<NetnsCookie>,
    /// Links to pods' own cgroups, one for each hook.
    own: HashMap<NetnsCookie, Vec<Link>>,
    /// Links to the cgroup of all pods.
    all: Option<Vec<Link>>,
}

impl Dns {
    /// A pod has departed.
    pub(super) fn forget(&mut self, cookie: NetnsCookie) {
        self.pods.remove(&cookie);
        self.own.remove(&cookie);
    }

    /// Whether any pod needs them on the cgroup of all pods, given which have processes in other cgroups than their own.
    fn is_for_all(&self, elsewhere: &BTreeSet<NetnsCookie>) -> bool {
        let mut pods = self.pods.iter();
        pods.any(|pod| !self.own.contains_key(pod) || elsewhere.contains(pod))
    }
}

fn load(loader: &Loader) -> Result<[OwnedFd; DNS_HOOKS.len()]> {
    // The queries of the proxy itself could not be distinguished from others.
    ensure!(
        probe::read_kernel(),
        "the kernel lets no program read its memory (lockdown=confidentiality, or no CAP_PERFMON): who sends a datagram is unknown"
    );
    let mut ebpf = loader.load(objects::DNS, &[])?;
    let programs = objects::load_programs(&mut ebpf, &DNS_HOOKS.each_ref().map(Hook::program))?;
    Ok(programs.try_into().expect("one for each hook"))
}

/// Attaches the programs to a cgroup, in the place of pinned links if these are there.
fn attach(
    programs: &[OwnedFd],
    cgroup: (&Path, u64),
    pin: impl Fn(&Hook) -> PathBuf,
) -> Result<Vec<Link>> {
    let target = File::open(cgroup.0)?;
    let mut links = Vec::new();
    for (hook, program) in DNS_HOOKS.iter().zip(programs) {
        let (program, kind) = (program.as_fd(), hook.attach_type);
        let is_there = |link: BorrowedFd<'_>| is_at(link, cgroup.1);
        let link = attach_or_take(program, target.as_fd(), kind, &pin(hook), is_there)
            .with_context(|| format!("attach {} to {}", hook.name, cgroup.0.display()))?;
        links.push(Link::new(link)?);
    }
    Ok(links)
}

/// What is wrong with the first link that is not as it should be.
fn loss(links: &[Link], cgroup: u64, pin: impl Fn(&Hook) -> PathBuf) -> Option<LinkLoss> {
    let mut links = DNS_HOOKS.iter().zip(links);
    links.find_map(|(hook, link)| link.loss(link.cgroup() == cgroup, &pin(hook)))
}

fn unpin(pin: impl Fn(&Hook) -> PathBuf) -> Result<()> {
    DNS_HOOKS
        .iter()
        .try_for_each(|hook| attachments::unpin(&pin(hook)))
}

fn pin_of_pod(pins: &Pins, cookie: NetnsCookie) -> impl Fn(&Hook) -> PathBuf + use<> {
    let dir = pins.pod_dir(cookie.get());
    move |hook| dir.join(hook.name)
}

impl Datapath {
    /// The programs that this agent has loaded, and those of an earlier one on the cgroup of all pods, by id.
    pub(super) fn dns_programs(&self) -> impl Iterator<Item = u32> {
        let loaded = self.dns.programs.loaded().into_iter().flatten();
        let loaded = loaded.filter_map(|program| sys::program_id(program.as_fd()).ok());
        let pinned = DNS_HOOKS.iter().filter_map(|hook| {
            let link = sys::open_pin(&self.pins.link(hook.name)).ok()?;
            Some(sys::link_info(link.as_fd()).ok()?.prog_id)
        });
        loaded.chain(pinned)
    }

    /// Has a pod's DNS queries over UDP captured. To be called before its row says so. What fails is a loss of
    /// [`Datapath::dns_losses`] from then on.
    ///
    /// # Errors
    /// If this kernel cannot, or the programs cannot be attached.
    pub fn capture_dns(&mut self, cookie: NetnsCookie) -> Result<()> {
        self.dns.pods.insert(cookie);
        let is_whole = self.dns_loss(cookie).is_none();
        let own = self.own_with_id(cookie);
        let own = own.map(|(path, id)| (path.to_owned(), id));
        let loader = &self.loader;
        let programs = self.dns.programs.get(|| load(loader))?;
        if !is_whole {
            // Until others are there. Where none can be attached, those on the cgroup of all pods are needed.
            let _before = self.dns.own.remove(&cookie);
            let pin = pin_of_pod(&self.pins, cookie);
            match own.map(|(path, id)| attach(programs, (&path, id), pin)) {
                Some(Ok(links)) => drop(self.dns.own.insert(cookie, links)),
                Some(Err(problem)) => tracing::debug!(%cookie, "{problem:#}"),
                None => {}
            }
        }
        self.keep_dns()
    }

    /// Has a pod's queries over UDP captured no more. To be called after its row says so.
    ///
    /// # Errors
    /// If a pin cannot be removed.
    pub fn release_dns(&mut self, cookie: NetnsCookie) -> Result<()> {
        self.dns.forget(cookie);
        unpin(pin_of_pod(&self.pins, cookie))
    }

    /// Pods whose programs are not where they should be, with the first loss of each.
    pub fn dns_losses(&self) -> impl Iterator<Item = (LinkId, LinkLoss)> {
        let pods = self.dns.pods.iter().copied();
        pods.filter_map(|cookie| Some((LinkId::Dns(cookie), self.dns_loss(cookie)?)))
    }

    /// Attaches and pins a pod's programs again; answers whether they are where they should be.
    ///
    /// # Errors
    /// If they cannot be attached.
    pub fn restore_dns(&mut self, cookie: NetnsCookie) -> Result<bool> {
        self.capture_dns(cookie)
            .context("capture its DNS queries over UDP")?;
        Ok(self.dns_loss(cookie).is_none())
    }

    /// A pod's own cgroup, if it is there, and its id.
    fn own_with_id(&self, cookie: NetnsCookie) -> Option<(&Path, u64)> {
        let path = self.own_cgroup(cookie)?;
        Some((path, cgroup::id(path).ok()?))
    }

    fn dns_loss(&self, cookie: NetnsCookie) -> Option<LinkLoss> {
        match (self.own_with_id(cookie), self.dns.own.get(&cookie)) {
            (Some((_, id)), Some(links)) => loss(links, id, pin_of_pod(&self.pins, cookie)),
            (Some(_), None) => Some(LinkLoss::Missing),
            (None, Some(_)) if self.own_cgroup(cookie).is_some_and(cgroup::is_gone) => None,
            (None, Some(_)) => Some(LinkLoss::Detached),
            // It needs them on the cgroup of all pods.
            (None, None) => self.dns.all.is_none().then_some(LinkLoss::Missing),
        }
    }

    /// Attaches the programs to the cgroup of all pods if a pod needs them there, and detaches them if none does.
    /// Unloads them after the last pod.
    ///
    /// # Errors
    /// If they cannot be attached, or a pin cannot be removed.
    pub fn keep_dns(&mut self) -> Result<()> {
        let pins = self.pins.clone();
        let pin = |hook: &Hook| pins.link(hook.name);
        if self.dns.is_for_all(&self.attachments.callbacks.elsewhere) {
            let path = self.attachments.cgroup().to_owned();
            let id = cgroup::id(&path)?;
            let all = self.dns.all.as_ref();
            if all.is_none_or(|links| loss(links, id, pin).is_some()) {
                let loader = &self.loader;
                let programs = self.dns.programs.get(|| load(loader))?;
                self.dns.all = Some(attach(programs, (&path, id), pin)?);
            }
            return Ok(());
        }
        let is_earlier = || DNS_HOOKS.iter().any(|hook| pin(hook).exists());
        if self.dns.all.is_some() || is_earlier() && self.has_all_attached()? {
            unpin(pin)?;
            self.dns.all = None;
        }
        if self.dns.pods.is_empty() && self.dns.programs.loaded().is_some() {
            self.dns.programs = OnDemand::Unloaded;
        }
        Ok(())
    }
}
