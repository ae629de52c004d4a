//! The same program inside a pod: joins its namespace and cgroup, becomes its user, and works.

mod dial;
mod flood;
mod serve;
mod stream;

use std::{
    fs::{self, File},
    io::{self, BufRead as _, Write as _},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use nix::{
    sched::{CloneFlags, setns},
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::{Gid, Uid, setgroups, setresgid, setresuid},
};
use serde::Serialize;

use crate::wire::{Job, Order, Work};

/// First word of the command line.
pub const WORD: &str = "worker";

/// Runs as a worker if the command line says so.
pub fn run_if_worker() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [word, job] = words.as_slice() else {
        return None;
    };
    if word != WORD {
        return None;
    }
    Some(
        match serde_json::from_str(job).map_err(Into::into).and_then(work) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("worker: {error:#}");
                ExitCode::FAILURE
            }
        },
    )
}

fn work(job: Job) -> Result<()> {
    let cgroup = job.cgroup.join("cgroup.procs");
    fs::write(&cgroup, std::process::id().to_string())
        .with_context(|| format!("join {}", cgroup.display()))?;
    setns(File::open(&job.netns)?, CloneFlags::CLONE_NEWNET)?;
    // A flood takes a descriptor per connection.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    setgroups(&[])?;
    let gid = Gid::from_raw(job.owner.gid);
    setresgid(gid, gid, gid)?;
    let uid = Uid::from_raw(job.owner.uid);
    setresuid(uid, uid, uid)?;
    match job.work {
        Work::Serve { who, ports } => serve::run(who, &ports),
        Work::Hang { ports } => serve::hang(&ports),
        Work::Dial {
            threads,
            pause,
            seed,
        } => dial::run(threads, pause, seed),
        Work::Flood { to, each } => flood::run(&to, each),
        Work::Stream { to, count } => stream::run(to, count),
        Work::Echo { ports } => stream::echo(&ports),
    }
}

/// The orders on stdin, to its end.
fn orders() -> impl Iterator<Item = Result<Order>> {
    io::stdin()
        .lock()
        .lines()
        .map(|line| Ok(serde_json::from_str(&line?)?))
}

/// Writes one line to stdout.
fn say(what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}
