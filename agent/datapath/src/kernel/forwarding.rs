//! The programs on a pod's interfaces: for packets that only pass through it, for connections of the node itself, and for
//! DNS queries on lo.
//!
//! Links attach them, which are pinned as those of other hooks are. On kernels without such links [filters] do.

mod filters;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use sidetrack_common::ids::NetnsCookie;
use sidetrack_reconcile::repairs::{IngressProgram, LinkLoss};

use super::{
    Datapath,
    attachments::{Link, pin_again, take},
    layouts::entries,
    objects::{self, Loader, OnDemand},
    probe,
    sys::{self, Order},
};

pub use filters::{remove_all, work};

/// The programs, each of which is in the kernel as long as a pod has it.
#[derive(Debug)]
pub struct Forwarding {
    /// Some with a number of their own: for connections of the node what pods' networks call the node's, for DNS queries the
    /// sidecar's port.
    programs: BTreeMap<(IngressProgram, Option<u32>), OnDemand<Weak<OwnedFd>>>,
    /// Whether links attach it.
    has_links: bool,
}

/// What a pod has of one of the programs: all but the routing rules and the flag of its row, which say by themselves
/// whether they are there.
#[derive(Debug)]
pub struct PodForwarding {
    /// The directory of its pins.
    dir: PathBuf,
    /// Which program; its pins are named after it.
    kind: IngressProgram,
    /// Whether links attach the program. Filters outlive their agent: [`remove_all`] removes them.
    pub has_links: bool,
    program: Option<Arc<OwnedFd>>,
    links: BTreeMap<u32, Link>,
    /// Interfaces where a link was found detached, and no repair has reported it yet: a re-read of the pod's network may
    /// come before the look for repairs.
    detached: Mutex<BTreeSet<u32>>,
    /// What people should know of it.
    pub note: Option<String>,
}

/// Interfaces that need the program, for [`attach`] in the pod's namespace.
#[derive(Debug)]
pub struct Missing {
    program: Arc<OwnedFd>,
    interfaces: BTreeSet<u32>,
    has_links: bool,
    kind: IngressProgram,
}

/// What [`attach`] has done.
#[derive(Debug, Default)]
pub struct Attached {
    links: Vec<(u32, OwnedFd)>,
    /// How many interfaces still need the program.
    pub rest: usize,
    /// The first interface to which a link could not be attached. The others have had their turn.
    failed: Option<(u32, io::Error)>,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            programs: BTreeMap::new(),
            has_links: probe::ingress_links(),
        }
    }
}

impl Forwarding {
    /// A program, loaded unless a pod has it; with a global of this value, if one is given.
    fn program(
        &mut self,
        loader: &Loader,
        kind: IngressProgram,
        global: Option<(&str, u32)>,
    ) -> Result<Arc<OwnedFd>> {
        let in_use = |it: &Weak<OwnedFd>| it.strong_count() > 0;
        self.programs.retain(|_, it| it.loaded().is_none_or(in_use));
        let key = (kind, global.map(|(_, number)| number));
        // Until it is handed over.
        let mut loaded = None;
        let program = self.programs.entry(key).or_default().get(|| {
            let mut object = loader.load_set(objects::FORWARD, global.as_slice())?;
            let program = objects::load_program(&mut object, name(kind))?;
            Ok(Arc::downgrade(loaded.insert(Arc::new(program))))
        })?;
        program.upgrade().context("the last pod has just let it go")
    }
}

/// The program's name in the object.
const fn name(kind: IngressProgram) -> &'static str {
    match kind {
        IngressProgram::Forwarded => "st_forward",
        IngressProgram::NodeCalls => "st_node_calls",
        IngressProgram::Queries => "st_dns_queries",
    }
}

/// Attaches the program to interfaces of the calling thread's namespace, to so many at a time. Filters it also removes
/// from all other interfaces; links are removed by their pins.
///
/// # Errors
/// If filters cannot be changed. Where a link cannot be attached, [`PodForwarding::keep`] says so.
pub fn attach(missing: &Missing, at_a_time: usize) -> io::Result<Attached> {
    let program = missing.program.as_fd();
    let interfaces = &missing.interfaces;
    if !missing.has_links {
        let rest = filters::follow(missing.kind, program, interfaces, at_a_time)?;
        return Ok(Attached {
            rest,
            ..Attached::default()
        });
    }
    let order = match missing.kind {
        IngressProgram::Forwarded => Order::Last,
        IngressProgram::NodeCalls | IngressProgram::Queries => Order::First,
    };
    let mut attached = Attached::default();
    for ifindex in interfaces {
        if attached.links.len() == at_a_time {
            attached.rest += 1;
            continue;
        }
        match sys::link_create_ingress(program, *ifindex, order) {
            Ok(link) => attached.links.push((*ifindex, link)),
            // It has vanished meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => drop(attached.failed.get_or_insert((*ifindex, error))),
        }
    }
    Ok(attached)
}

impl Datapath {
    /// What a pod has of a program before anything is attached.
    #[must_use]
    pub fn not_attached(&self, cookie: NetnsCookie, kind: IngressProgram) -> PodForwarding {
        PodForwarding {
            dir: self.pins.pod_dir(cookie.get()),
            kind,
            has_links: self.forwarding.has_links,
            program: None,
            links: BTreeMap::new(),
            detached: Mutex::default(),
            note: None,
        }
    }

    /// Gives a pod the program.
    ///
    /// # Errors
    /// If this kernel does not take it.
    pub fn load_forwarding(&mut self, pod: &mut PodForwarding) -> Result<()> {
        pod.program = Some(self.forwarding.program(&self.loader, pod.kind, None)?);
        Ok(())
    }

    /// Gives a pod the program for connections of the node, whose network the pod's calls by this number.
    ///
    /// # Errors
    /// If this kernel does not take it, cannot attach it by links, or refuses apps whose listeners share a port.
    pub fn load_node_calls(&mut self, pod: &mut PodForwarding, netns_id: u32) -> Result<()> {
        if !pod.has_links || !probe::shared_listeners() {
            bail!("that takes Linux 6.6");
        }
        let global = Some(("NODE_NETNS_ID", netns_id));
        pod.program = Some(self.forwarding.program(&self.loader, pod.kind, global)?);
        Ok(())
    }

    /// Gives a pod the program for DNS queries, which go to the sidecar's port.
    ///
    /// # Errors
    /// If this kernel does not take it.
    pub fn load_queries(&mut self, pod: &mut PodForwarding, port: u16) -> Result<()> {
        let global = Some(("DNS_CAPTURE_PORT", port.into()));
        let program = self.forwarding.program(&self.loader, pod.kind, global)?;
        if pod
            .program
            .as_ref()
            .is_some_and(|it| !Arc::ptr_eq(it, &program))
        {
            // The pinned link gets it.
            pod.links.clear();
        }
        pod.program = Some(program);
        Ok(())
    }
}

impl PodForwarding {
    /// Detaches it from all interfaces that links attach it to.
    ///
    /// # Errors
    /// If a pin cannot be removed.
    pub fn clear(&mut self) -> Result<()> {
        self.program = None;
        self.detach_others(&BTreeSet::new())
    }

    fn detach_others(&mut self, wanted: &BTreeSet<u32>) -> Result<()> {
        self.links.retain(|ifindex, _| wanted.contains(ifindex));
        let detached = self.detached.get_mut();
        detached.retain(|ifindex| wanted.contains(ifindex));
        detached.extend(
            self.links
                .extract_if(.., |ifindex, link| !is_on(link.fd.as_fd(), *ifindex))
                .map(|(ifindex, _)| ifindex),
        );
        for ifindex in pinned(&self.dir, self.prefix())?.difference(wanted) {
            let pin = self.pin(*ifindex);
            fs::remove_file(&pin).with_context(|| format!("remove {}", pin.display()))?;
        }
        Ok(())
    }

    /// Detaches links from interfaces that need the program no more. Answers which need it and do not have it; with
    /// filters those that need it, because only the pod's namespace lists the filters.
    ///
    /// # Errors
    /// If the program was not loaded, or a pin cannot be removed.
    pub fn missing(&mut self, wanted: &BTreeSet<u32>) -> Result<Option<Missing>> {
        self.detach_others(wanted)?;
        let program = Arc::clone(self.program.as_ref().context("the program is not loaded")?);
        let mut interfaces = wanted.clone();
        if self.has_links {
            interfaces.retain(|ifindex| !self.has_link(*ifindex, program.as_fd()));
        }
        let missing = Missing {
            program,
            interfaces,
            has_links: self.has_links,
            kind: self.kind,
        };
        Ok((!missing.interfaces.is_empty()).then_some(missing))
    }

    /// Whether an interface has the program by a link, which an earlier agent may have made.
    fn has_link(&mut self, ifindex: u32, program: BorrowedFd<'_>) -> bool {
        let link = self.links.get(&ifindex);
        if link.is_some_and(Link::has_its_program) {
            return true;
        }
        let link = take(program, &self.pin(ifindex), |link| is_on(link, ifindex));
        let link = link.and_then(|link| Link::new(link).ok());
        let has_link = link.is_some();
        self.links.extend(link.map(|link| (ifindex, link)));
        has_link
    }

    /// Keeps what [`attach`] attached.
    ///
    /// # Errors
    /// If it cannot be pinned, or was not attached to all.
    pub fn keep(&mut self, attached: Attached) -> Result<()> {
        let mut result = match attached.failed {
            Some((ifindex, error)) => Err(error).with_context(|| format!("interface {ifindex}")),
            None => Ok(()),
        };
        // One that cannot be pinned is dropped, the others are not.
        for (ifindex, link) in attached.links {
            let pinned = pin_again(link.as_fd(), &self.pin(ifindex));
            let kept = pinned.and_then(|()| Link::new(link));
            result = result.and(kept.map(|link| drop(self.links.insert(ifindex, link))));
        }
        result
    }

    /// The links that are not as they were made. Those that are attached nowhere are to be attached again, or their
    /// interface is gone.
    pub fn losses(&self) -> BTreeMap<u32, LinkLoss> {
        let losses = self.links.iter().filter_map(|(ifindex, link)| {
            let is_attached = is_on(link.fd.as_fd(), *ifindex);
            Some((*ifindex, link.loss(is_attached, &self.pin(*ifindex))?))
        });
        let detached = self.detached.lock();
        let detached = detached.iter().map(|it| (*it, LinkLoss::Detached));
        losses.chain(detached).collect()
    }

    /// Puts a link right. Answers whether the interface has it, which may be gone.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn restore(&self, ifindex: u32, loss: &LinkLoss) -> Result<bool> {
        let Some(link) = self.links.get(&ifindex) else {
            return Ok(false);
        };
        let program = self.program.as_ref().context("the program is not loaded")?;
        link.restore(loss, program.as_fd(), &self.pin(ifindex))?;
        let is_attached = is_on(link.fd.as_fd(), ifindex);
        if is_attached {
            self.detached.lock().remove(&ifindex);
        }
        Ok(is_attached)
    }

    fn pin(&self, ifindex: u32) -> PathBuf {
        self.dir.join(format!("{}{ifindex}", self.prefix()))
    }

    /// The first part of the names of its pins; the index of the interface follows.
    fn prefix(&self) -> &'static str {
        match self.kind {
            IngressProgram::Forwarded => "forward-",
            IngressProgram::NodeCalls => "node-calls-",
            IngressProgram::Queries => "dns-queries-",
        }
    }
}

/// Whether a link is attached to this interface. One whose interface is gone is attached to none, whichever interface
/// has its index now.
fn is_on(link: BorrowedFd<'_>, ifindex: u32) -> bool {
    sys::link_ifindex(link).is_ok_and(|found| found == ifindex)
}

/// The interfaces that have a pin.
fn pinned(dir: &Path, prefix: &str) -> Result<BTreeSet<u32>> {
    let pins = entries(dir).with_context(|| format!("list {}", dir.display()))?;
    let index = |pin: &PathBuf| {
        pin.file_name()?
            .to_str()?
            .strip_prefix(prefix)?
            .parse()
            .ok()
    };
    Ok(pins.iter().filter_map(index).collect())
}
