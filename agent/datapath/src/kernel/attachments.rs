//! What the agent has attached and pinned, held by descriptors as well: removing a pin detaches
//! nothing while the agent lives.

use std::{
    collections::HashMap,
    fs::{self, File},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use anyhow::{Context as _, Result};
use sidetrack_common::ids::NetnsCookie;

use super::{callbacks::Callbacks, hooks::Hook, layouts::ASIDE, maps::PINNED, pins::Pins, sys};

/// A link, held open.
#[derive(Debug)]
pub struct Link {
    pub(super) fd: OwnedFd,
    id: u32,
    /// Id of the program it had when it was made.
    program: u32,
}

impl Link {
    /// The cgroup it is attached to, by id; 0 if it is detached.
    pub(super) fn cgroup(&self) -> u64 {
        sys::link_cgroup(self.fd.as_fd()).unwrap_or_default()
    }

    /// Takes a link.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        let info = sys::link_info(fd.as_fd()).context("look at a link")?;
        Ok(Self {
            fd,
            id: info.id,
            program: info.prog_id,
        })
    }

    /// Whether it has the program that it was given.
    pub(super) fn has_its_program(&self) -> bool {
        sys::link_info(self.fd.as_fd()).is_ok_and(|info| info.prog_id == self.program)
    }

    /// The same of a link to a network namespace, which also has to be attached there.
    pub(super) fn is_in_netns(&self) -> bool {
        let found = sys::link_program_in_netns(self.fd.as_fd());
        found.is_ok_and(|program| program == Some(self.program))
    }

    /// Whether this is what is pinned there.
    fn is_pinned(&self, path: &Path) -> bool {
        let pinned = sys::open_pin(path).and_then(|pin| sys::link_info(pin.as_fd()));
        pinned.is_ok_and(|info| info.id == self.id)
    }

    /// Pins it again unless it is; whether that was necessary.
    pub(super) fn keep_pinned(&self, path: &Path) -> Result<bool> {
        if self.is_pinned(path) {
            return Ok(false);
        }
        pin_again(self.fd.as_fd(), path)?;
        Ok(true)
    }
}

/// An attached cgroup hook.
#[derive(Debug)]
pub struct AttachedHook {
    pub(super) hook: &'static Hook,
    pub(super) program: OwnedFd,
    pub(super) program_id: u32,
    /// `None` while no pod needs it there.
    pub(super) link: Option<Link>,
}

impl AttachedHook {
    /// Takes what is attached.
    pub fn new(
        hook: &'static Hook,
        program: BorrowedFd<'_>,
        link: Option<OwnedFd>,
    ) -> Result<Self> {
        Ok(Self {
            hook,
            program: program.try_clone_to_owned()?,
            program_id: sys::program_id(program).context("look at a program")?,
            link: link.map(Link::new).transpose()?,
        })
    }

    /// Attaches the program to a cgroup, in the place of the earlier link; answers that.
    pub(super) fn attach_anew(&mut self, pins: &Pins, cgroup: &File) -> Result<Option<Link>> {
        let link = sys::link_create(self.program.as_fd(), cgroup.as_fd(), self.hook.attach_type)?;
        pin_again(link.as_fd(), &pins.link(self.hook.name))?;
        Ok(self.link.replace(Link::new(link)?))
    }
}

/// Everything that is attached or pinned.
#[derive(Debug)]
pub struct Attachments {
    pub(super) hooks: Vec<AttachedHook>,
    pub(super) maps: Vec<(&'static str, OwnedFd, u32)>,
    pub(super) inbound: OwnedFd,
    pods: Mutex<HashMap<NetnsCookie, Link>>,
    /// The callbacks on pods' own cgroups.
    pub(super) callbacks: Callbacks,
    /// As it was given on the command line.
    pub(super) given: Option<PathBuf>,
    /// The cgroup the hooks are attached to, and its id.
    pub(super) cgroup: PathBuf,
    pub(super) cgroup_id: u64,
    /// Links to cgroups that were removed: for the sockets that were made in them.
    pub(super) removed: Vec<Link>,
    /// Names of foreign programs, by id.
    pub(super) foreign: HashMap<u32, String>,
}

impl Attachments {
    /// Takes the attached hooks, and opens the pinned maps.
    pub fn new(
        pins: &Pins,
        hooks: Vec<AttachedHook>,
        inbound: OwnedFd,
        (cgroup, cgroup_id): (&Path, u64),
        given: Option<&Path>,
    ) -> Result<Self> {
        let maps = PINNED.iter().map(|&name| {
            let path = pins.map(name);
            let fd =
                sys::open_pin(&path).with_context(|| format!("open map {}", path.display()))?;
            let id = sys::map_info(fd.as_fd())?.id;
            Ok((name, fd, id))
        });
        Ok(Self {
            hooks,
            maps: maps.collect::<Result<_>>()?,
            inbound,
            pods: Mutex::default(),
            callbacks: Callbacks::default(),
            given: given.map(Path::to_owned),
            cgroup: cgroup.to_owned(),
            cgroup_id,
            removed: Vec::new(),
            foreign: HashMap::new(),
        })
    }

    /// The pods' links, by cookie.
    pub fn pods(&self) -> MutexGuard<'_, HashMap<NetnsCookie, Link>> {
        self.pods
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The cgroup the hooks are attached to.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }
}

/// Pins an object, with the directory if that is gone as well.
pub(super) fn pin_again(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    replace_pin(object, path)
}

/// Pins an object under a name that may be in use: first under another name, then renamed over it.
pub(super) fn replace_pin(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(ASIDE);
    let aside = PathBuf::from(aside);
    let _ = fs::remove_file(&aside);
    sys::pin(object, &aside).with_context(|| format!("pin {}", aside.display()))?;
    fs::rename(&aside, path).with_context(|| format!("rename {} into place", aside.display()))
}
