//! Repairs of what other programs or people change: pins, links, the programs in them, the cgroup.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use anyhow::{Context as _, Result};
use sidetrack_common::names;

use super::{
    Datapath,
    attachments::{AttachedHook, Attachments, pin_again},
    cgroup, fd_number,
    pins::{Lock, Pins},
    sys,
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
    /// What people should know although nothing is wrong, as sentences.
    pub notes: Vec<String>,
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

impl AttachedHook {
    fn repair(&mut self, pins: &Pins, cgroup: &File, id: u64) -> Result<Option<(Kind, String)>> {
        let path = pins.link(self.hook.name);
        let name = self.hook.name;
        let repair = || format!("repair hook {name}");
        let Some(link) = &self.link else {
            return Ok(None);
        };
        if link.cgroup() != id {
            drop(self.attach_anew(pins, cgroup).with_context(repair)?);
            let text = format!("hook {name} was detached: attached it again");
            return Ok(Some((Kind::Link, text)));
        }
        let info = sys::link_info(link.fd.as_fd()).with_context(repair)?;
        if info.prog_id != self.program_id {
            sys::link_update(link.fd.as_fd(), self.program.as_fd()).with_context(repair)?;
            let text = format!(
                "hook {name} had another program, of id {}: put ours in its place",
                info.prog_id
            );
            return Ok(Some((Kind::Link, text)));
        }
        let pinned = link.keep_pinned(&path).with_context(repair)?;
        Ok(pinned.then(|| (Kind::Pin, pin_text(&path))))
    }
}

impl Attachments {
    /// Looks whether the cgroup is where it was, and follows it. An error when it is nowhere.
    fn follow_cgroup(&mut self, pins: &Pins) -> Result<Option<(Kind, String)>> {
        let is_there = cgroup::find(Some(&self.cgroup))
            .and_then(|path| cgroup::id(&path))
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
        let id = cgroup::id(&path)?;
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
            // Attached before another one failed: two sets of hooks must not decide for one socket.
            if attached
                .link
                .as_ref()
                .is_none_or(|link| link.cgroup() == id)
            {
                continue;
            }
            let earlier = attached
                .attach_anew(pins, &target)
                .with_context(|| format!("attach {} to {}", attached.hook.name, path.display()))?;
            // Two sets of hooks must not decide for one socket: cgroups of one path are never
            // above or below each other.
            if same_path {
                self.removed.extend(earlier);
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
}

pub(super) fn pin_text(path: &Path) -> String {
    format!("pin {} was gone: made it again", path.display())
}

impl Datapath {
    /// Looks at everything that belongs to no pod, and repairs it.
    pub fn repair(&mut self, findings: &mut Findings) {
        let Self {
            pins,
            lock,
            attachments,
            earlier,
            ..
        } = self;
        for (name, map, id) in &attachments.maps {
            findings.tried(keep_map(pins, name, map.as_fd(), *id));
        }
        findings.tried(keep_inbound(attachments));
        match attachments.follow_cgroup(pins) {
            Ok(repair) => findings.repairs.extend(repair),
            Err(error) => {
                findings.problems.push(format!("{error:#}"));
                return;
            }
        }
        let target = match File::open(&attachments.cgroup) {
            Ok(target) => target,
            Err(error) => {
                let text = format!("open {}: {error}", attachments.cgroup.display());
                findings.problems.push(text);
                return;
            }
        };
        for attached in &mut attachments.hooks {
            findings.tried(attached.repair(pins, &target, attachments.cgroup_id));
        }
        attachments.removed.retain(|link| link.cgroup() != 0);
        let own = earlier.iter().flat_map(|it| it.programs()).collect();
        attachments.report_foreign(&target, &own, findings);
        findings.tried(keep_lock(pins, lock));
    }
}

/// The lock is on the directory: with another one made in its place, anybody could have that.
fn keep_lock(pins: &Pins, lock: &mut Lock) -> Result<Option<(Kind, String)>> {
    if lock.is_on(pins.root()) {
        return Ok(None);
    }
    let again = pins.try_lock()?.with_context(|| {
        format!(
            "{} was made anew, and another sidetrack agent uses it now: stop one of the two agents",
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

/// While no program is active, inbound connections of all pods are refused.
fn keep_inbound(attachments: &Attachments) -> Result<Option<(Kind, String)>> {
    let Some((_, map, _)) = attachments
        .maps
        .iter()
        .find(|(name, ..)| *name == names::INBOUND_PROGRAM)
    else {
        return Ok(None);
    };
    let slot = 0_u32.to_ne_bytes();
    let mut found = [0; size_of::<u32>()];
    let wanted = sys::program_id(attachments.inbound.as_fd())?;
    if sys::map_lookup(map.as_fd(), &slot, &mut found)? && u32::from_ne_bytes(found) == wanted {
        return Ok(None);
    }
    let number = fd_number(attachments.inbound.as_fd()).to_ne_bytes();
    sys::map_update(map.as_fd(), &slot, &number, 0).context("activate the inbound program")?;
    let text =
        "the program that decides about inbound connections was not active: activated it again";
    Ok(Some((Kind::Row, text.to_owned())))
}
