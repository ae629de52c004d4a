//! Running worker processes, as seen from outside.

use std::{
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use anyhow::{Context as _, Result};
use lab::{command::die_with_parent, network::PodNet};
use serde::de::DeserializeOwned;

use crate::{
    account::Account,
    wire::{Dialed, Job, Order, Owner, Work},
    worker::WORD,
};

/// Starts processes. A child is to end with the thread that started it, so all are started by one
/// that lives as long as the soak.
#[derive(Clone, Debug)]
pub struct Spawner {
    wanted: mpsc::Sender<Wanted>,
}

type Wanted = (Command, mpsc::Sender<std::io::Result<Child>>);

impl Spawner {
    /// Begins.
    pub fn new() -> Self {
        let (wanted, orders) = mpsc::channel::<Wanted>();
        thread::spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(die_with_parent(&mut command).spawn());
            }
        });
        Self { wanted }
    }

    /// Starts one in a pod, as a user.
    pub fn start(&self, pod: &PodNet, owner: Owner, work: Work) -> Result<Worker> {
        let job = Job {
            netns: pod.path(),
            cgroup: pod.cgroup.clone(),
            owner,
            work,
        };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([WORD, &serde_json::to_string(&job)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let (answer, started) = mpsc::channel();
        self.wanted.send((command, answer))?;
        let mut child = started.recv()?.context("start a worker")?;
        let stdin = child.stdin.take().context("stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout")?).lines();
        Ok(Worker {
            child,
            stdin,
            stdout: Some(stdout),
        })
    }

    /// Starts one that serves, and waits until it does.
    pub fn serve(&self, pod: &PodNet, owner: Owner, work: Work) -> Result<Worker> {
        let mut worker = self.start(pod, owner, work)?;
        worker.hear::<String>()?;
        Ok(worker)
    }

    /// Starts one that dials; what it reports goes into the account.
    pub fn dial(
        &self,
        pod: &PodNet,
        owner: Owner,
        work: Work,
        account: &Arc<Account>,
    ) -> Result<Dialer> {
        let mut worker = self.start(pod, owner, work)?;
        let stdout = worker.stdout.take().context("stdout")?;
        let account = Arc::clone(account);
        let reader = thread::spawn(move || {
            for line in stdout.map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(Dialed::Ended(report)) => account.enter(&report),
                    Ok(Dialed::Hangs(hanging)) => account.examine(hanging),
                    Err(error) => account.fail(format!("a dialler said {line:?}: {error}")),
                }
            }
        });
        Ok(Dialer {
            worker: Mutex::new(worker),
            reader: Mutex::new(Some(reader)),
        })
    }
}

/// A running process; dropping it kills it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
}

impl Worker {
    /// Sends an order.
    pub fn tell(&mut self, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order)?;
        writeln!(self.stdin, "{line}").context("tell a worker")
    }

    /// Hears something.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let lines = self.stdout.as_mut().context("somebody else listens")?;
        let line = lines.next().context("a worker has ended")??;
        serde_json::from_str(&line).with_context(|| format!("a worker said {line:?}"))
    }
}

impl Worker {
    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that dials, and the reader of its reports.
#[derive(Debug)]
pub struct Dialer {
    worker: Mutex<Worker>,
    reader: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Dialer {
    /// Sends an order.
    pub fn tell(&self, order: &Order) -> Result<()> {
        self.worker
            .lock()
            .expect("no thread panics while it holds the lock")
            .tell(order)
    }

    /// Waits until it has ended by itself; all it has done is in the account then.
    pub fn wait(&self) {
        let reader = self
            .reader
            .lock()
            .expect("no thread panics while it holds the lock")
            .take();
        reader.map(thread::JoinHandle::join);
    }
}
