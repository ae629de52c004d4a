//! Tries what the kernel offers besides programs and maps.

use std::{
    fs::{self, File},
    io,
    ops::ControlFlow,
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{maps, programs, report::Problem};
use crate::kernel::{
    attachments::replace_pin,
    cgroup, exclusive, kernel_layout,
    kernel_log::LogLevel,
    layouts,
    loaded::Loaded,
    pins::Pins,
    sock_diag::{self, Sockets},
    sys,
};

pub(super) fn bpffs(path: &Path) -> Result<(), Problem> {
    let pins = Pins::new(path);
    let pins = mounted("bpf", pins)?;
    try_pins(&pins).map_err(|error| Problem::Unprepared(format!("{error:#}")))
}

/// Does with pins what an agent does at its start, in a directory of its own, and removes it.
fn try_pins(pins: &Pins) -> Result<()> {
    layouts::refuse_other(pins.root())?;
    let trial = pins.trial();
    let pinned = trial.lock();
    let pinned = pinned.and_then(|_held| match maps::smallest() {
        Ok(map) => replace_pin(map.as_fd(), &trial.map("doctor")),
        // Another line of the report says why.
        Err(_) => Ok(()),
    });
    let removed = layouts::remove_everything(trial.root());
    pinned?;
    removed.map(drop)
}

/// Loads all that an agent loads at its start, and tries it. Nothing is attached.
pub(super) fn own_programs(bpffs: &Path) -> Result<()> {
    let pins = Pins::new(bpffs)?;
    layouts::remove_abandoned_trials(&pins)?;
    let trial = pins.trial();
    let held = trial.lock()?;
    let loaded = Loaded::new(&trial, LogLevel::WARNINGS).and_then(|it| it.try_out());
    let removed = layouts::remove_everything(trial.root());
    drop(held);
    loaded?;
    removed.map(drop)
}

pub(super) fn cgroup2(given: Option<&Path>) -> Result<(), Problem> {
    let cgroup = mounted("cgroup2", cgroup::find(given))?;
    try_link(&cgroup).map_err(|error| Problem::Unprepared(format!("{error:#}")))
}

/// Attaches a program that allows every connection, replaces it by itself, and detaches it at once.
fn try_link(cgroup: &Path) -> Result<()> {
    let Ok(program) = programs::smallest() else {
        // Another line of the report says why.
        return Ok(());
    };
    let target = File::open(cgroup).with_context(|| format!("open {}", cgroup.display()))?;
    let link = sys::link_create(program.as_fd(), target.as_fd(), programs::SMALLEST)
        .with_context(|| exclusive::failed_attachment("a program", cgroup, programs::SMALLEST))?;
    sys::link_update(link.as_fd(), program.as_fd()).context("replace the program of a link")
}

/// A file system that the kernel supports only needs to be mounted.
fn mounted<T>(fs_type: &str, found: Result<T>) -> Result<T, Problem> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known
        .lines()
        .any(|line| line.split_whitespace().last() == Some(fs_type));
    found.map_err(|problem| {
        if known {
            Problem::Unprepared(format!("{problem:#}"))
        } else {
            Problem::Missing(format!("the kernel has no file system {fs_type}"))
        }
    })
}

pub(super) fn sock_diag() -> io::Result<()> {
    let until = Instant::now() + Duration::from_secs(1);
    // The first socket shows that the kernel answers.
    let first = |_| ControlFlow::Break(());
    sock_diag::visit(Sockets::Listening, until, first)
}

pub(super) fn netns_cookie() -> io::Result<u64> {
    sys::netns_cookie(std::net::UdpSocket::bind("127.0.0.1:0")?.as_fd())
}

pub(super) fn iterator(name: &str) -> Result<()> {
    ensure!(
        kernel_layout::has_function(name)?,
        "the kernel has no {name}"
    );
    Ok(())
}
