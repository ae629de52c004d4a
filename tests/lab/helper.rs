//! A helper process of a test, in a pod: it reads requests from its stdin and answers on its stdout, a
//! line of JSON each. The actor is one; a tool that measures starts itself again as one.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Lines, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    sync::{LazyLock, mpsc},
    thread,
};

use anyhow::{Context as _, Result};
use nix::{
    sched::{CloneFlags, setns},
    unistd::{Gid, Uid, setgroups, setresgid, setresuid},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{command::die_with_parent, network::PodNet, protocol::Identity};

/// First word of the command line of a tool that is a helper.
const WORD: &str = "helper";

/// A running helper. Dropping it ends the process and everything it opened.
#[derive(Debug)]
pub struct Helper {
    pid: u32,
    /// Held from a question to its answer: several threads may ask.
    asking: Mutex<()>,
    child: Mutex<Child>,
    stdin: Mutex<ChildStdin>,
    stdout: Mutex<Lines<BufReader<ChildStdout>>>,
}

impl Helper {
    /// Starts one.
    pub fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command).context("start a helper")?;
        let stdout = child.stdout.take().context("its stdout")?;
        Ok(Self {
            pid: child.id(),
            asking: Mutex::new(()),
            stdin: Mutex::new(child.stdin.take().context("its stdin")?),
            stdout: Mutex::new(BufReader::new(stdout).lines()),
            child: Mutex::new(child),
        })
    }

    /// Starts this program again, in a pod, as a user, to do some work: see [`run_if_helper`].
    pub fn start_self(pod: &PodNet, user: &Identity, work: impl Serialize) -> Result<Self> {
        let job = Job {
            netns: pod.path().into(),
            cgroup: pod.cgroup.clone(),
            user: user.clone(),
            work,
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args([WORD, &serde_json::to_string(&job)?]);
        Self::start(command)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a request.
    pub fn send(&self, request: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        self.stdin
            .lock()
            .write_all(line.as_bytes())
            .context("write to a helper")
    }

    /// Waits for an answer; none if it has ended.
    pub fn next<T: DeserializeOwned>(&self) -> Option<Result<T>> {
        let line = self.stdout.lock().next()?;
        Some(line.context("read from a helper").and_then(|line| {
            serde_json::from_str(&line).with_context(|| format!("a helper said {line:?}"))
        }))
    }

    /// Waits for an answer.
    pub fn hear<T: DeserializeOwned>(&self) -> Result<T> {
        self.next().context("a helper has ended")?
    }

    /// Sends a request and waits for its answer.
    pub fn ask<T: DeserializeOwned>(&self, request: &impl Serialize) -> Result<T> {
        let _turn = self.asking.lock();
        self.send(request)?;
        self.hear()
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&self) -> Result<()> {
        let mut child = self.child.lock();
        child.kill()?;
        child.wait()?;
        Ok(())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

type Order = (Command, mpsc::SyncSender<io::Result<Child>>);

/// A child ends with the thread that started it, so one thread starts all helpers, and lives as long as
/// this process.
fn spawn(command: Command) -> Result<Child> {
    static ORDERS: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, incoming) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, started) in incoming {
                let _ = started.send(die_with_parent(&mut command).spawn());
            }
        });
        orders
    });
    let (answer, started) = mpsc::sync_channel(1);
    ORDERS.send((command, answer))?;
    Ok(started.recv()??)
}

/// What a tool that is a helper is to do.
#[derive(Serialize, Deserialize)]
struct Job<W> {
    netns: PathBuf,
    cgroup: PathBuf,
    user: Identity,
    work: W,
}

/// Works as a helper if the command line says so.
pub fn run_if_helper<W: DeserializeOwned>(work: impl FnOnce(W) -> Result<()>) -> Option<ExitCode> {
    let mut words = std::env::args().skip(1);
    if words.next()? != WORD {
        return None;
    }
    let job = words.next().context("no job");
    let outcome = job.and_then(|job| {
        let job: Job<W> = serde_json::from_str(&job)?;
        join(&job.netns, &job.cgroup)?;
        become_user(&job.user)?;
        work(job.work)
    });
    Some(outcome.map_or_else(
        |error| {
            eprintln!("helper: {error:#}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// Moves this process, which must have one thread, into a network namespace and a cgroup.
pub fn join(netns: &Path, cgroup: &Path) -> Result<()> {
    join_cgroup(cgroup)?;
    join_netns(netns)
}

/// Joins a cgroup.
pub fn join_cgroup(cgroup: &Path) -> Result<()> {
    fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string())
        .with_context(|| format!("join cgroup {}", cgroup.display()))
}

/// Joins a network namespace.
pub fn join_netns(netns: &Path) -> Result<()> {
    let namespace = File::open(netns).with_context(|| format!("open {}", netns.display()))?;
    setns(namespace, CloneFlags::CLONE_NEWNET).context("join the network namespace")
}

fn become_user(user: &Identity) -> Result<()> {
    setgroups(&[])?;
    let gid = Gid::from_raw(user.gid);
    setresgid(gid, gid, gid)?;
    let uid = Uid::from_raw(user.uid);
    Ok(setresuid(uid, uid, uid)?)
}

/// In a helper: the requests, until stdin ends.
pub fn requests<T: DeserializeOwned>() -> impl Iterator<Item = Result<T>> {
    io::stdin()
        .lock()
        .lines()
        .map(|line| Ok(serde_json::from_str(&line?)?))
}

/// In a helper: answers.
pub fn say(answer: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}
