//! What the agent holds of the datapath, and looks after: pins, links, the programs in them, the
//! cgroup they are attached to. Whatever is pinned is held by a descriptor as well, so that
//! removing a pin detaches nothing while the agent lives.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use anyhow::{Context as _, Result};
use sidetrack_common::names;

use super::{
    Datapath, cgroup_id, fd_number,
    hooks::Hook,
    pins::{Lock, Pins},
    replace_pin, sys,
};
use crate::{
    kernel::cgroup,
    netns::{Netns, inode_at},
};

/// A kind of repair, as metrics count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The cgroup was made anew, or is reached by another path.
    Cgroup,
    /// A link was detached, or has another program.
    Link,
    /// A pin was gone, or was of something else.
    Pin,
    /// A row was missing, different or too many.
    Row,
}

impl Kind {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Cgroup, Self::Link, Self::Pin, Self::Row];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Link => "link",
            Self::Pin => "pin",
            Self::Row => "row",
        }
    }
}

/// What a look at everything brought.
#[derive(Debug, Default)]
pub struct Findings {
    /// What was repaired, as sentences.
    pub repairs: Vec<(Kind, String)>,
    /// What is wrong and was not repaired, as sentences.
    pub problems: Vec<String>,
}

impl Findings {
    /// Something was repaired.
    pub fn repaired(&mut self, kind: Kind, text: impl Into<String>) {
        self.repairs.push((kind, text.into()));
    }

    /// A repair was tried: what came of it.
    pub fn tried(&mut self, result: Result<Option<(Kind, String)>>) {
        match result {
            Ok(repair) => self.repairs.extend(repair),
            Err(error) => self.problems.push(format!("{error:#}")),
        }
    }
}

/// A link that is held.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    id: u32,
    /// Id of the program it had when it was made.
    program: u32,
}

impl Link {
    /// Holds it.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        let info = sys::link_info(fd.as_fd()).context("look at a link")?;
        Ok(Self {
            fd,
            id: info.id,
            program: info.prog_id,
        })
    }

    /// Whether it has the program that it was given.
    fn has_its_program(&self) -> bool {
        sys::link_info(self.fd.as_fd()).is_ok_and(|info| info.prog_id == self.program)
    }

    /// Whether this is what is pinned there.
    fn is_pinned(&self, path: &Path) -> bool {
        let pinned = sys::open_pin(path).and_then(|pin| sys::link_info(pin.as_fd()));
        pinned.is_ok_and(|info| info.id == self.id)
    }

    /// Pins it again unless it is; whether that was necessary.
    fn keep_pinned(&self, path: &Path) -> Result<bool> {
        if self.is_pinned(path) {
            return Ok(false);
        }
        pin_again(self.fd.as_fd(), path)?;
        Ok(true)
    }
}

/// A cgroup hook in place.
#[derive(Debug)]
pub struct Attached {
    hook: &'static Hook,
    program: OwnedFd,
    program_id: u32,
    link: Link,
}

impl Attached {
    /// Holds what is attached.
    pub fn new(hook: &'static Hook, program: BorrowedFd<'_>, link: OwnedFd) -> Result<Self> {
        Ok(Self {
            hook,
            program: program.try_clone_to_owned()?,
            program_id: sys::program_id(program).context("look at a program")?,
            link: Link::new(link)?,
        })
    }

    fn heal(&mut self, pins: &Pins, cgroup: &File, id: u64) -> Result<Option<(Kind, String)>> {
        let path = pins.link(self.hook.name);
        let name = self.hook.name;
        let repair = || format!("repair hook {name}");
        if sys::link_cgroup(self.link.fd.as_fd()).ok() != Some(id) {
            drop(self.attach_anew(pins, cgroup).with_context(repair)?);
            let text = format!("hook {name} was detached: attached it again");
            return Ok(Some((Kind::Link, text)));
        }
        let info = sys::link_info(self.link.fd.as_fd()).with_context(repair)?;
        if info.prog_id != self.program_id {
            sys::link_update(self.link.fd.as_fd(), self.program.as_fd()).with_context(repair)?;
            let text = format!(
                "hook {name} had another program, of id {}: put ours in its place",
                info.prog_id
            );
            return Ok(Some((Kind::Link, text)));
        }
        let pinned = self.link.keep_pinned(&path).with_context(repair)?;
        Ok(pinned.then(|| (Kind::Pin, pin_text(&path))))
    }

    /// Attaches the program to a cgroup, in the place of the earlier link; answers that.
    fn attach_anew(&mut self, pins: &Pins, cgroup: &File) -> Result<Link> {
        let link = sys::link_create(self.program.as_fd(), cgroup.as_fd(), self.hook.attach_type)?;
        pin_again(link.as_fd(), &pins.link(self.hook.name))?;
        Ok(std::mem::replace(&mut self.link, Link::new(link)?))
    }
}

/// Everything that is held.
#[derive(Debug)]
pub struct Held {
    hooks: Vec<Attached>,
    maps: Vec<(&'static str, OwnedFd, u32)>,
    arrival: OwnedFd,
    pods: Mutex<HashMap<u64, Link>>,
    /// As it was given on the command line.
    given: Option<PathBuf>,
    /// The cgroup the hooks are attached to, and its id.
    cgroup: PathBuf,
    cgroup_id: u64,
    /// Links to cgroups that were removed: for the sockets that were made in them.
    removed: Vec<Link>,
    /// Names of programs that are not ours.
    strangers: HashMap<u32, String>,
}

impl Held {
    /// Holds all there is.
    pub fn new(
        pins: &Pins,
        hooks: Vec<Attached>,
        arrival: OwnedFd,
        (cgroup, cgroup_id): (&Path, u64),
        given: Option<&Path>,
    ) -> Result<Self> {
        let maps = names::MAPS.map(|name| {
            let path = pins.map(name);
            let fd =
                sys::open_pin(&path).with_context(|| format!("open map {}", path.display()))?;
            let id = sys::map_info(fd.as_fd())?.id;
            Ok((name, fd, id))
        });
        Ok(Self {
            hooks,
            maps: maps.into_iter().collect::<Result<_>>()?,
            arrival,
            pods: Mutex::default(),
            given: given.map(Path::to_owned),
            cgroup: cgroup.to_owned(),
            cgroup_id,
            removed: Vec::new(),
            strangers: HashMap::new(),
        })
    }

    /// The pods' links, by cookie.
    pub fn pods(&self) -> MutexGuard<'_, HashMap<u64, Link>> {
        self.pods
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The cgroup the hooks are attached to.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Looks whether the cgroup is where it was, and follows it. An error when it is nowhere.
    fn follow_cgroup(&mut self, pins: &Pins) -> Result<Option<(Kind, String)>> {
        let is_there = cgroup::find(Some(&self.cgroup))
            .and_then(|path| cgroup_id(&path))
            .is_ok_and(|id| id == self.cgroup_id);
        if is_there {
            return Ok(None);
        }
        let before = self.cgroup.display().to_string();
        let path = cgroup::find(self.given.as_deref()).with_context(|| {
            format!(
                "the pods' cgroup {before} is gone, so that pods in another are not intercepted; make it again, or restart the agent with --cgroup PATH"
            )
        })?;
        let id = cgroup_id(&path)?;
        let same_path = path == self.cgroup;
        if id == self.cgroup_id {
            self.cgroup = path;
            let now = self.cgroup.display();
            return Ok(Some((
                Kind::Cgroup,
                format!("the pods' cgroup was at {before} and is at {now} now"),
            )));
        }
        let target = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        for attached in &mut self.hooks {
            // Done before another one failed: a socket must not be judged twice.
            if sys::link_cgroup(attached.link.fd.as_fd()).ok() == Some(id) {
                continue;
            }
            let earlier = attached
                .attach_anew(pins, &target)
                .with_context(|| format!("attach {} to {}", attached.hook.name, path.display()))?;
            // Two sets of hooks must not judge one socket: cgroups of one path are never above or
            // below each other.
            if same_path {
                self.removed.push(earlier);
            }
        }
        self.cgroup = path;
        self.cgroup_id = id;
        let now = self.cgroup.display();
        Ok(Some((
            Kind::Cgroup,
            format!("the pods' cgroup {before} was made anew: attached all hooks to {now}"),
        )))
    }

    /// Programs on the cgroup that are not ours: they are left alone, and told of.
    fn strangers(&mut self, cgroup: &File, ours: &BTreeSet<u32>, findings: &mut Findings) {
        for attached in &self.hooks {
            let hook = attached.hook;
            let ids = match sys::attached_programs(cgroup.as_fd(), hook.attach_type) {
                Ok(ids) => ids,
                Err(error) => {
                    let text = format!("ask which programs are attached to {}: {error}", hook.name);
                    findings.problems.push(text);
                    continue;
                }
            };
            let own = ids.iter().position(|id| *id == attached.program_id);
            for (position, id) in ids.iter().enumerate() {
                if *id == attached.program_id || ours.contains(id) {
                    continue;
                }
                let name = self.strangers.entry(*id).or_insert_with(|| {
                    sys::program_name(*id)
                        .ok()
                        .filter(|name| !name.is_empty())
                        .unwrap_or_else(|| "without a name".to_owned())
                });
                let before = own.is_none_or(|own| position < own);
                findings.problems.push(format!(
                    "program {name} (id {id}) is attached to hook {} of {} as well and runs {} sidetrack's: {}; sidetrack leaves it alone, `bpftool cgroup show {}` lists it",
                    hook.name,
                    self.cgroup.display(),
                    if before { "before" } else { "after" },
                    consequence(hook.name, before),
                    self.cgroup.display(),
                ));
            }
        }
    }
}

/// What it means that another program is there.
fn consequence(hook: &str, before: bool) -> &'static str {
    match (hook, before) {
        ("connect4" | "connect6", true) => {
            "connections are judged by the address that it leaves, and those it refuses fail"
        }
        ("connect4" | "connect6", false) => {
            "it sees redirected connections on their way to the sidecar, and may send them elsewhere or refuse them"
        }
        ("getsockopt", false) => "it may change the original destination that the sidecar is told",
        ("sockops", _) => {
            "which callbacks a socket gets is up to both; should original destinations be wrong, it is the first to look at"
        }
        ("getpeername4" | "getpeername6", false) => {
            "it may change the peer address that an app is told"
        }
        _ => "sidetrack's answer comes after its own and stands",
    }
}

fn pin_text(path: &Path) -> String {
    format!("pin {} was gone: made it again", path.display())
}

/// Pins an object, with the directory if that is gone as well.
fn pin_again(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    replace_pin(object, path)
}

impl Datapath {
    /// Looks at everything that belongs to no pod, and repairs it.
    pub fn heal(&mut self, findings: &mut Findings) {
        let Self {
            pins,
            lock,
            held,
            earlier,
            ..
        } = self;
        for (name, map, id) in &held.maps {
            findings.tried(keep_map(pins, name, map.as_fd(), *id));
        }
        findings.tried(keep_arrival(held));
        match held.follow_cgroup(pins) {
            Ok(repair) => findings.repairs.extend(repair),
            Err(error) => {
                findings.problems.push(format!("{error:#}"));
                return;
            }
        }
        let target = match File::open(&held.cgroup) {
            Ok(target) => target,
            Err(error) => {
                let text = format!("open {}: {error}", held.cgroup.display());
                findings.problems.push(text);
                return;
            }
        };
        for attached in &mut held.hooks {
            findings.tried(attached.heal(pins, &target, held.cgroup_id));
        }
        held.removed
            .retain(|link| sys::link_cgroup(link.fd.as_fd()).is_ok_and(|id| id != 0));
        let ours = earlier.iter().flat_map(|it| it.programs()).collect();
        held.strangers(&target, &ours, findings);
        findings.tried(keep_lock(pins, lock));
    }

    /// Whether a pod's link is in its namespace, with the program that it was given.
    pub fn is_attached(&self, cookie: u64, inode: u64) -> bool {
        let pods = self.held.pods();
        pods.get(&cookie).is_some_and(|link| {
            sys::link_netns(link.fd.as_fd()).is_ok_and(|found| found == inode)
                && link.has_its_program()
        })
    }

    /// Looks at a pod's link, and repairs it.
    pub fn heal_pod(
        &self,
        cookie: u64,
        netns_path: &Path,
        inode: u64,
    ) -> Result<Option<(Kind, String)>> {
        if !self.is_attached(cookie, inode) {
            // It may be about to be replaced; then the pod is enrolled again.
            if inode_at(netns_path) != Some(inode) {
                return Ok(None);
            }
            let netns = Netns::open(netns_path)?;
            if netns.cookie() != cookie {
                return Ok(None);
            }
            self.held.pods().remove(&cookie);
            self.attach_pod(cookie, netns.as_fd())?;
            let text =
                "its sk_lookup link was detached or had another program: mended it".to_owned();
            return Ok(Some((Kind::Link, text)));
        }
        let path = self.pins.pod_link(cookie);
        let pods = self.held.pods();
        let Some(link) = pods.get(&cookie) else {
            return Ok(None);
        };
        let pinned = link.keep_pinned(&path)?;
        Ok(pinned.then(|| (Kind::Pin, pin_text(&path))))
    }
}

/// The lock is on the directory: with another one made in its place, anybody could have that.
fn keep_lock(pins: &Pins, lock: &mut Lock) -> Result<Option<(Kind, String)>> {
    if lock.is_on(pins.root()) {
        return Ok(None);
    }
    let again = pins.try_lock()?.with_context(|| {
        format!(
            "{} was made anew, and another sidetrack has taken it: end one of the two agents",
            pins.root().display()
        )
    })?;
    *lock = again;
    let text = format!("{} was made anew: took it again", pins.root().display());
    Ok(Some((Kind::Pin, text)))
}

fn keep_map(
    pins: &Pins,
    name: &str,
    map: BorrowedFd<'_>,
    id: u32,
) -> Result<Option<(Kind, String)>> {
    let path = pins.map(name);
    let pinned = sys::open_pin(&path).and_then(|pin| sys::map_info(pin.as_fd()));
    if pinned.is_ok_and(|info| info.id == id) {
        return Ok(None);
    }
    pin_again(map, &path).with_context(|| format!("pin map {name} again"))?;
    Ok(Some((Kind::Pin, pin_text(&path))))
}

/// Arrivals at all pods are refused while nobody judges them.
fn keep_arrival(held: &Held) -> Result<Option<(Kind, String)>> {
    let Some((_, map, _)) = held
        .maps
        .iter()
        .find(|(name, ..)| *name == names::ARRIVAL_PROGRAM)
    else {
        return Ok(None);
    };
    let slot = 0_u32.to_ne_bytes();
    let mut found = [0; size_of::<u32>()];
    let own = sys::program_id(held.arrival.as_fd())?;
    if sys::map_lookup(map.as_fd(), &slot, &mut found)? && u32::from_ne_bytes(found) == own {
        return Ok(None);
    }
    let number = fd_number(held.arrival.as_fd()).to_ne_bytes();
    sys::map_update(map.as_fd(), &slot, &number, 0)
        .context("put the arrivals' program in force")?;
    let text = "the program that judges arrivals was not in force: put it there again";
    Ok(Some((Kind::Row, text.to_owned())))
}
