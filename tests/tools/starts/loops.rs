//! The loops.

use std::{
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::product::{Maps, Pins};
use lab::{
    agent::{Agent, Extra, binary},
    injected::injected,
    node::Node,
    runtime::{Added, Sandbox},
    wait::eventually,
};
use nix::sys::signal::Signal;
use parking_lot::Mutex;

use crate::report::Loop;

/// The sidecar's user.
const PROXY: u32 = 1337;
/// How many seconds a start waits for an agent: longer than one is away here.
const WAIT_TIMEOUT: u32 = 60;
/// How often kubelet's part of a start is tried again.
const ATTEMPTS: usize = 100;

/// A node with many pods.
pub struct Environment {
    node: Node,
    /// How many pods there have been.
    pods: usize,
}

/// What became of one start.
enum Started {
    Intercepted,
    Missed,
    Lost,
}

impl Environment {
    /// With so many pods on the node.
    pub fn new(count: u32) -> Result<Self> {
        let mut environment = Self {
            node: Node::new()?,
            pods: 0,
        };
        environment.node.patience = WAIT_TIMEOUT;
        environment.node.agent = None;
        environment.node.start_agent()?;
        for _ in 0..count {
            let (name, uid) = environment.create()?;
            environment.node.ready(&name, &uid)?;
        }
        Ok(environment)
    }

    /// Creates a pod in the API; nothing of it runs.
    fn create(&mut self) -> Result<(String, String)> {
        self.pods += 1;
        let (name, uid) = (format!("web-{}", self.pods), self.node.lab.uid(self.pods));
        let mut pod = injected(&name, &uid);
        pod["status"]["phase"] = "Pending".into();
        self.node.api.apply(pod)?;
        Ok((name, uid))
    }

    fn delete(&mut self, name: &str, sandbox: &Sandbox) -> Result<()> {
        self.node.runtime.delete(&mut self.node.lab, sandbox)?;
        self.node.api.delete("Pod", "shop", name)
    }

    /// The first thing the app does is to connect out.
    fn first(&self, sandbox: &Sandbox, uid: &str) -> Started {
        match self.node.first_connection(sandbox, uid) {
            Ok((_, 15001)) => Started::Intercepted,
            Ok(_) => Started::Missed,
            Err(error) => {
                eprintln!("starts: {error:#}");
                Started::Lost
            }
        }
    }

    /// One after the other.
    pub fn with_plugin(&mut self, count: u32) -> Result<Loop> {
        let mut result = Loop::default();
        for number in 0..count {
            progress("with the plugin", number, count);
            let (name, uid) = self.create()?;
            let sandbox = self.node.ready(&name, &uid)?;
            result.took.push(sandbox.took);
            result.add(self.first(&sandbox, &uid));
            self.delete(&name, &sandbox)?;
        }
        Ok(result)
    }

    /// The same while the agent is killed and started again at random.
    pub fn with_kills(&mut self, count: u32) -> Result<Loop> {
        let done = AtomicBool::new(false);
        let agent = Mutex::new(self.node.agent.take().context("an agent")?);
        let (bin, conf) = (self.node.runtime.bin(), self.node.runtime.conf());
        let timeout = format!("--cni-timeout={WAIT_TIMEOUT}");
        let arguments = ["--cni-bin-dir", &bin, "--cni-conf-dir", &conf, &timeout];
        let places = self.node.places().clone();
        let kubeconfig = self.node.api.kubeconfig().display().to_string();
        let kill = || -> Result<u64> {
            let mut kills = 0;
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(fastrand::u64(..4_000)));
                let mut agent = agent.lock();
                let signal = [Signal::SIGKILL, Signal::SIGTERM][fastrand::usize(..2)];
                agent.end(signal)?;
                kills += 1;
                thread::sleep(Duration::from_millis(fastrand::u64(..3_000)));
                *agent = Agent::spawn_with(
                    &places,
                    &Extra {
                        kubeconfig: Some(&kubeconfig),
                        arguments: &arguments,
                        ..Extra::default()
                    },
                )?;
            }
            Ok(kills)
        };
        let (result, kills) = thread::scope(|scope| {
            let killer = scope.spawn(kill);
            let result = self.restless(count);
            done.store(true, Ordering::Relaxed);
            (result, killer.join().expect("no panic"))
        });
        drop(agent);
        let mut result = result?;
        result.kills = kills?;
        self.node.start_agent()?;
        Ok(result)
    }

    /// As kubelet: a start that fails is tried again.
    fn restless(&mut self, count: u32) -> Result<Loop> {
        let mut result = Loop::default();
        for number in 0..count {
            progress("while agents are killed", number, count);
            let (name, uid) = self.create()?;
            let mut ready = None;
            for _ in 0..ATTEMPTS {
                match self.node.add(&name, &uid)? {
                    Added::Ready(sandbox) => {
                        ready = Some(sandbox);
                        break;
                    }
                    Added::Failed(error) => {
                        ensure!(error["msg"].is_string(), "{error}");
                        result.refused += 1;
                    }
                }
            }
            let sandbox = ready.with_context(|| format!("{name} never starts"))?;
            result.took.push(sandbox.took);
            result.add(self.first(&sandbox, &uid));
            self.delete(&name, &sandbox)?;
        }
        Ok(result)
    }

    /// Without the plugin, behind the gate; how long from the pod's first process to its enrollment.
    pub fn without_plugin(&mut self, count: u32) -> Result<Loop> {
        drop(self.node.agent.take());
        self.node.runtime.install(&self.node.lab, &["--remove"])?;
        let agent = Agent::start_with(self.node.places(), &Extra::api(&self.node.api))?;
        let maps = Maps::open(&Pins::new(&self.node.places().bpffs)?)?;
        let mut result = Loop::default();
        for number in 0..count {
            progress("without the plugin", number, count);
            let (name, uid) = self.create()?;
            let sandbox = self.node.ready(&name, &uid)?;
            let pod = sandbox.pod(&self.node.lab, &uid)?;
            let mut gate = pod.command(PROXY, &binary()?, &["validate"]);
            let gate = gate.stdout(Stdio::piped()).spawn()?;
            let start = Instant::now();
            let enrolled = || -> Result<bool> {
                let rows = maps.pods.rows()?;
                Ok(rows
                    .iter()
                    .any(|(_, row)| row.uid.starts_with(uid.as_bytes())))
            };
            eventually(Duration::from_secs(5), || {
                ensure!(enrolled()?, "{name} is not enrolled");
                Ok(())
            })?;
            result.took.push(start.elapsed());
            let passed = gate.wait_with_output()?.status.success();
            ensure!(passed, "the gate of {name}");
            result.add(self.first(&sandbox, &uid));
            self.delete(&name, &sandbox)?;
        }
        drop(agent);
        Ok(result)
    }
}

impl Loop {
    fn add(&mut self, started: Started) {
        match started {
            Started::Intercepted => self.intercepted += 1,
            Started::Missed => self.missed += 1,
            Started::Lost => self.lost += 1,
        }
    }
}

fn progress(what: &str, number: u32, count: u32) {
    if number.is_multiple_of(100) {
        eprintln!("starts: {what}: {number} of {count}");
    }
}
