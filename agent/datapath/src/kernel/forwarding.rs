//! The program for packets that only pass through a pod, on the interfaces by which they enter.
//!
//! Links attach it, which are pinned as those of other hooks are. On kernels without such links [filters] do.

mod filters;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};
use aya::programs::Program;
use sidetrack_common::ids::NetnsCookie;

use super::{
    Datapath,
    attachments::{Link, pin_again},
    objects::{self, Loader, OnDemand},
    probe,
    repair::{Findings, Kind, pin_text},
    sys,
};

pub use filters::{remove_all, work};

/// The first part of the names of its pins; the index of the interface follows.
const PIN: &str = "forward-";

/// The loaded program, and the pods' links.
#[derive(Debug)]
pub struct Forwarding {
    program: OnDemand<Arc<OwnedFd>>,
    /// Whether links attach it.
    has_links: bool,
    links: HashMap<NetnsCookie, BTreeMap<u32, Link>>,
}

/// Interfaces that need the program, for [`attach`] in the pod's namespace.
#[derive(Debug)]
pub struct Missing {
    program: Arc<OwnedFd>,
    interfaces: BTreeSet<u32>,
    has_links: bool,
}

/// What [`attach`] has done.
#[derive(Debug, Default)]
pub struct Attached {
    links: Vec<(u32, OwnedFd)>,
    /// How many interfaces still need the program.
    pub rest: usize,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            program: OnDemand::Unloaded,
            has_links: probe::ingress_links(),
            links: HashMap::new(),
        }
    }
}

impl Forwarding {
    /// A pod has left.
    pub(super) fn forget(&mut self, cookie: NetnsCookie) {
        self.links.remove(&cookie);
    }

    /// Unloads the program after the last pod.
    fn unload(&mut self) {
        if self.links.is_empty() && self.program.loaded().is_some() {
            self.program = OnDemand::Unloaded;
        }
    }
}

fn load(loader: &Loader) -> Result<Arc<OwnedFd>> {
    let mut ebpf = loader.load(objects::FORWARD, &[])?;
    let Some(Program::SchedClassifier(program)) = ebpf.program_mut("st_forward") else {
        bail!("no program st_forward in the object");
    };
    program.load().context("load st_forward")?;
    Ok(Arc::new(program.fd()?.as_fd().try_clone_to_owned()?))
}

/// Attaches the program to interfaces of the calling thread's namespace, to so many at a time. Filters it also removes
/// from all other interfaces; links are removed by their pins.
///
/// # Errors
/// If it cannot be attached to one of them.
pub fn attach(missing: &Missing, at_a_time: usize) -> io::Result<Attached> {
    let program = missing.program.as_fd();
    let interfaces = &missing.interfaces;
    if !missing.has_links {
        let rest = filters::follow(program, interfaces, at_a_time)?;
        return Ok(Attached {
            rest,
            ..Attached::default()
        });
    }
    let mut links = Vec::new();
    for ifindex in interfaces.iter().take(at_a_time) {
        match sys::link_create_ingress(program, *ifindex) {
            Ok(link) => links.push((*ifindex, link)),
            // It has vanished meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    let rest = interfaces.len().saturating_sub(at_a_time);
    Ok(Attached { links, rest })
}

impl Datapath {
    /// Whether filters attach the program, which outlive their agent: [`remove_all`] removes them.
    #[must_use]
    pub fn forwards_by_filters(&self) -> bool {
        !self.forwarding.has_links
    }

    /// Detaches links from interfaces of a pod that need the program no more. Answers which need it and do not have it;
    /// with filters those that need it, because only the pod's namespace knows the filters.
    ///
    /// # Errors
    /// If there is no program although some interface needs it, or a pin cannot be removed.
    pub fn missing_forwarding(
        &mut self,
        cookie: NetnsCookie,
        wanted: &BTreeSet<u32>,
    ) -> Result<Option<Missing>> {
        let dir = self.pins.pod_dir(cookie.get());
        let links = self.forwarding.links.entry(cookie).or_default();
        links.retain(|ifindex, link| wanted.contains(ifindex) && is_on(link.fd.as_fd(), *ifindex));
        for ifindex in pinned(&dir)?.difference(wanted) {
            let pin = dir.join(format!("{PIN}{ifindex}"));
            fs::remove_file(&pin).with_context(|| format!("remove {}", pin.display()))?;
        }
        if wanted.is_empty() {
            self.forwarding.links.remove(&cookie);
            return Ok(None);
        }
        let loader = &self.loader;
        let program = Arc::clone(self.forwarding.program.get(|| load(loader))?);
        let has_links = self.forwarding.has_links;
        if !has_links {
            // They are found in the pod's namespace only.
            return Ok(Some(Missing {
                program,
                interfaces: wanted.clone(),
                has_links,
            }));
        }
        let mut interfaces = BTreeSet::new();
        let links = self.forwarding.links.entry(cookie).or_default();
        for ifindex in wanted {
            if links.get(ifindex).is_some_and(Link::has_its_program) {
                continue;
            }
            match taken_over(&dir, *ifindex, program.as_fd()) {
                Some(link) => {
                    links.insert(*ifindex, link);
                }
                None => {
                    interfaces.insert(*ifindex);
                }
            }
        }
        Ok((!interfaces.is_empty()).then_some(Missing {
            program,
            interfaces,
            has_links,
        }))
    }

    /// Pins links again whose pins are gone, and puts their program in its place again. Answers the links that are
    /// attached nowhere any more, by pod and interface: there they are to be attached again, or the interface is gone.
    pub fn repair_forwarding(&mut self, findings: &mut Findings) -> Vec<(NetnsCookie, u32)> {
        self.forwarding.unload();
        let mut detached = Vec::new();
        for (cookie, links) in &self.forwarding.links {
            let dir = self.pins.pod_dir(cookie.get());
            for (ifindex, link) in links {
                if is_on(link.fd.as_fd(), *ifindex) {
                    let pin = dir.join(format!("{PIN}{ifindex}"));
                    findings.tried(self.repair_forward_link(link, *ifindex, &pin));
                } else {
                    detached.push((*cookie, *ifindex));
                }
            }
        }
        detached
    }

    fn repair_forward_link(
        &self,
        link: &Link,
        ifindex: u32,
        pin: &Path,
    ) -> Result<Option<(Kind, String)>> {
        let repair = || {
            format!(
                "repair the program for forwarded packets at {}",
                pin.display()
            )
        };
        if !link.has_its_program() {
            let program = self.forwarding.program.loaded();
            let program = program.context("the program is not loaded")?;
            sys::link_update(link.fd.as_fd(), program.as_fd()).with_context(repair)?;
            let text = format!(
                "another program had replaced the one for forwarded packets at interface {ifindex}, {}: put it in its place again",
                pin.display()
            );
            return Ok(Some((Kind::Link, text)));
        }
        let pinned = link.keep_pinned(pin).with_context(repair)?;
        Ok(pinned.then(|| (Kind::Pin, pin_text(pin))))
    }

    /// Whether an interface of a pod has the program by a link.
    #[must_use]
    pub fn has_forwarding(&self, cookie: NetnsCookie, ifindex: u32) -> bool {
        let links = self.forwarding.links.get(&cookie);
        let link = links.and_then(|links| links.get(&ifindex));
        link.is_some_and(|link| is_on(link.fd.as_fd(), ifindex))
    }

    /// Keeps what [`attach`] attached.
    ///
    /// # Errors
    /// If it cannot be pinned.
    pub fn keep_forwarding(&mut self, cookie: NetnsCookie, attached: Attached) -> Result<()> {
        let dir = self.pins.pod_dir(cookie.get());
        for (ifindex, link) in attached.links {
            pin_again(link.as_fd(), &dir.join(format!("{PIN}{ifindex}")))?;
            let links = self.forwarding.links.entry(cookie).or_default();
            links.insert(ifindex, Link::new(link)?);
        }
        Ok(())
    }
}

/// The link that an earlier agent made, with this one's program.
fn taken_over(dir: &Path, ifindex: u32, program: BorrowedFd<'_>) -> Option<Link> {
    let link = sys::open_pin(&dir.join(format!("{PIN}{ifindex}"))).ok()?;
    let is_usable = is_on(link.as_fd(), ifindex) && sys::link_update(link.as_fd(), program).is_ok();
    is_usable.then(|| Link::new(link).ok())?
}

/// Whether a link is attached to this interface. One whose interface is gone is attached to none, whoever has its
/// index now.
fn is_on(link: BorrowedFd<'_>, ifindex: u32) -> bool {
    sys::link_ifindex(link).is_ok_and(|found| found == ifindex)
}

/// The interfaces that have a pin.
fn pinned(dir: &Path) -> Result<BTreeSet<u32>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        result => result.with_context(|| format!("list {}", dir.display()))?,
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.strip_prefix(PIN)?.parse().ok())
        .collect())
}
