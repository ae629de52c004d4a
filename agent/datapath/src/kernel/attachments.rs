//! What the agent has attached and pinned, held by descriptors as well: removing a pin detaches
//! nothing while the agent lives.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use aya_obj::generated::bpf_attach_type;
use sidetrack_common::ids::NetnsCookie;
use sidetrack_reconcile::repairs::LinkLoss;

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

    /// What is wrong with it, given whether it is attached where it should be.
    pub(super) fn loss(&self, is_attached: bool, pin: &Path) -> Option<LinkLoss> {
        let program = sys::link_info(self.fd.as_fd()).map(|info| info.prog_id);
        match program {
            Ok(program) if is_attached && program != self.program => {
                Some(LinkLoss::Replaced(program))
            }
            Ok(_) if is_attached => {
                (!self.is_pinned(pin)).then(|| LinkLoss::Unpinned(pin.to_owned()))
            }
            _ => Some(LinkLoss::Detached),
        }
    }

    /// Puts a link right that is attached.
    pub(super) fn restore(
        &self,
        loss: &LinkLoss,
        program: BorrowedFd<'_>,
        pin: &Path,
    ) -> Result<()> {
        match loss {
            LinkLoss::Replaced(_) => Ok(sys::link_update(self.fd.as_fd(), program)?),
            LinkLoss::Unpinned(_) => pin_again(self.fd.as_fd(), pin),
            LinkLoss::Missing | LinkLoss::Detached => Ok(()),
        }
    }

    /// Whether this is what is pinned there.
    pub(super) fn is_pinned(&self, path: &Path) -> bool {
        is_pinned(path, self.id, |pin| Ok(sys::link_info(pin)?.id))
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
    /// The pods' sk_lookup links.
    pub(super) pods: HashMap<NetnsCookie, Link>,
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
    pub(super) program_names: HashMap<u32, String>,
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
            pods: HashMap::new(),
            callbacks: Callbacks::default(),
            given: given.map(Path::to_owned),
            cgroup: cgroup.to_owned(),
            cgroup_id,
            removed: Vec::new(),
            program_names: HashMap::new(),
        })
    }

    /// The cgroup the hooks are attached to.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }
}

/// Whether the object with this id is pinned there. While the file system is read-only no pin can be opened, and none
/// can change.
pub(super) fn is_pinned(
    path: &Path,
    id: u32,
    id_of: impl FnOnce(BorrowedFd<'_>) -> io::Result<u32>,
) -> bool {
    match sys::open_pin(path).and_then(|pin| id_of(pin.as_fd())) {
        Ok(found) => found == id,
        Err(error) => error.kind() == io::ErrorKind::ReadOnlyFilesystem,
    }
}

/// The link that an earlier agent pinned, with this program in it, if it is where it should be.
pub(super) fn take(
    program: BorrowedFd<'_>,
    pin: &Path,
    is_there: impl FnOnce(BorrowedFd<'_>) -> bool,
) -> Option<OwnedFd> {
    let link = sys::open_pin(pin).ok()?;
    let is_usable = is_there(link.as_fd()) && sys::link_update(link.as_fd(), program).is_ok();
    is_usable.then_some(link)
}

/// Attaches a program to a cgroup or a namespace, and pins the link. One of an earlier agent is [used](take).
pub(super) fn attach_or_take(
    program: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attach_type: bpf_attach_type,
    pin: &Path,
    is_there: impl FnOnce(BorrowedFd<'_>) -> bool,
) -> Result<OwnedFd> {
    if let Some(link) = take(program, pin, is_there) {
        return Ok(link);
    }
    let link = sys::link_create(program, target, attach_type)?;
    pin_again(link.as_fd(), pin)?;
    Ok(link)
}

/// Whether a link is attached to the cgroup with this id.
pub(super) fn is_at(link: BorrowedFd<'_>, cgroup: u64) -> bool {
    sys::link_cgroup(link).is_ok_and(|at| at == cgroup)
}

/// Pins an object, with the directory if that is gone as well.
pub(super) fn pin_again(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    replace_pin(object, path)
}

/// Removes a pin, if it is there.
pub(super) fn unpin(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
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
