//! A process in a pod that connects and measures, or listens. Nothing else runs in it, so that a
//! figure is the kernel's time. Commands come on stdin, a line of JSON goes back for each.

mod client;
mod server;

use std::{fs, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use lab::{
    helper::{self, Helper},
    network::PodNet,
    protocol::Identity,
};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::{Pid, Uid},
};
use serde::{Deserialize, Serialize};
use socket2::Socket;

/// What one command brought.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Nanoseconds, the median.
    pub p50: u64,
    /// Nanoseconds; 99 of 100 were not longer.
    pub p99: u64,
    /// How often it succeeded.
    pub count: u64,
    /// How often it did not.
    pub failed: u64,
    /// This process's processor time for all, nanoseconds.
    pub cpu: u64,
}

impl Answer {
    fn of(mut nanos: Vec<u64>) -> Self {
        Self {
            count: nanos.len() as u64,
            p50: median(&mut nanos),
            p99: nanos
                .get(nanos.len() * 99 / 100)
                .copied()
                .unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// Bytes of a DNS query, and of its answer.
const QUERY: usize = 40;

/// A running worker; dropping it ends it.
#[derive(Debug)]
pub struct Worker(Helper);

impl Worker {
    /// Starts one in a pod, as a user; it listens on `port` if that is not 0.
    pub fn start(pod: &PodNet, uid: u32, port: u16) -> Result<Self> {
        Self::start_as(pod, (uid, uid), port)
    }

    /// The same as a user and a group. Root listens transparently.
    pub fn start_as(pod: &PodNet, (uid, gid): (u32, u32), port: u16) -> Result<Self> {
        let worker = Helper::start_self(pod, &Identity::with_gid(uid, gid), port)?;
        // It listens when it answers.
        worker.ask::<Answer>(&"ready")?;
        Ok(Self(worker))
    }

    /// Sends a command and waits for its answer.
    pub fn ask(&self, words: &str) -> Result<Answer> {
        self.0.ask(&words).with_context(|| words.to_owned())
    }

    /// Commands that accept mean its listener of IPv6 from here on, or that of IPv4.
    pub fn listen_v6(&self, is_v6: bool) -> Result<()> {
        self.ask(&format!("family {}", u8::from(is_v6))).map(drop)
    }

    /// Sends a command.
    pub fn send(&self, words: &str) -> Result<()> {
        self.0.send(&words)
    }

    /// Waits for an answer.
    pub fn answer(&self) -> Result<Answer> {
        self.0.hear()
    }
}

/// Runs as a worker if the command line says so.
pub fn run_if_worker() -> Option<ExitCode> {
    helper::run_if_helper(work)
}

fn work(port: u16) -> Result<()> {
    stay_on_one_processor()?;
    let listeners = if port == 0 {
        None
    } else {
        Some(server::listen(port, Uid::effective().is_root())?)
    };
    let mut held = Vec::new();
    let mut family = 0;
    for command in helper::requests::<String>() {
        let before = processor_time()?;
        let command = command?;
        let mut answer = match command.strip_prefix("family ") {
            Some(index) => {
                family = index.parse()?;
                Answer::default()
            }
            None => {
                let listener = listeners.as_ref().and_then(|it| it.get::<usize>(family));
                obey(&command, listener, &mut held)?
            }
        };
        answer.cpu = processor_time()?.saturating_sub(before);
        helper::say(&answer)?;
    }
    Ok(())
}

/// Both ends have the same one. Otherwise a figure shows where the scheduler put them, and on a virtual machine
/// what it takes to wake the other processor.
fn stay_on_one_processor() -> Result<()> {
    let mut one = CpuSet::new();
    one.set(0)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}

/// Nanoseconds on a processor so far.
fn processor_time() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/schedstat")?;
    let first = text.split_whitespace().next().context("a number")?;
    Ok(first.parse()?)
}

fn obey(line: &str, listener: Option<&Socket>, held: &mut Vec<Socket>) -> Result<Answer> {
    let words: Vec<&str> = line.split(' ').collect();
    let seconds = |text: &str| text.parse().map(Duration::from_secs);
    Ok(match (words.as_slice(), listener) {
        (["ready"], _) => Answer::default(),
        (["from", address], _) => {
            client::begin_at(address.parse()?);
            Answer::default()
        }
        (["release"], _) => {
            held.clear();
            Answer::default()
        }
        (["bind", address], _) => {
            held.push(server::bind(address.parse()?)?);
            Answer::default()
        }
        (["answer", times], _) => {
            let socket = held.first().context("nothing is bound")?;
            server::answer(socket, times.parse()?)?
        }
        (["drain"], Some(listener)) => server::drain(listener)?,
        (["echo"], Some(listener)) => server::echo(listener)?,
        (["serve", times], Some(listener)) => server::serve(listener, times.parse()?)?,
        (["sink", length], Some(listener)) => server::sink(listener, seconds(length)?)?,
        (["web"], Some(listener)) => server::web(listener)?,
        (["bytes"], Some(listener)) => server::bytes(listener)?,
        (["keep"], Some(listener)) => server::keep(listener, held)?,
        (["connect", to, times], _) => client::connects(to.parse()?, times.parse()?)?,
        (["connect-ports", to, times, count], _) => {
            client::connects_to_ports(to.parse()?, times.parse()?, count.parse()?)?
        }
        (["connect-addresses", to, times, count], _) => {
            client::connects_to_addresses(to.parse()?, times.parse()?, count.parse()?)?
        }
        (["request", to, times], _) => client::requests(to.parse()?, times.parse()?, true)?,
        (["requests", to, times], _) => client::requests(to.parse()?, times.parse()?, false)?,
        (["session", to, times], _) => client::sessions(to.parse()?, times.parse()?)?,
        (["round-trip", to, times, size], _) => {
            client::round_trips(to.parse()?, times.parse()?, size.parse()?)?
        }
        (["query", to, times], _) => client::queries(to.parse()?, times.parse()?)?,
        (["connected-query", to, times], _) => {
            client::connected_queries(to.parse()?, times.parse()?)?
        }
        (["drink", size], Some(listener)) => server::drink(listener, size.parse()?)?,
        (["pour", to, times, size], _) => client::pour(to.parse()?, times.parse()?, size.parse()?)?,
        (["churn", to, length], _) => client::churn(to.parse()?, seconds(length)?)?,
        (["hold", to, times], _) => client::hold(to.parse()?, times.parse()?, held)?,
        _ => bail!("cannot {line:?}"),
    })
}

/// The middle one; sorts them.
pub fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
