//! The agent under test: the real binary with a bpffs, a cgroup, a socket and a manifest directory
//! of its own.

pub mod held;
mod places;

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

pub use self::places::{NOT_OF_PODS, Places, dump_of, gone, is, nothing_remains};
use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;

use crate::{apiserver::ApiServer, command::Process, deploy::checkout, wait::eventually};

/// How long anything the agent is asked for may take on a busy machine: a bound for what never comes, no measurement.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long an agent may take to be ready: the kernel's verifier takes a second, and many on a busy machine. Tests that
/// are about starts measure them.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// What an agent is started with beside its [`Places`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// Arguments.
    pub arguments: &'a [&'a str],
    /// Environment variables.
    pub variables: &'a [(&'a str, &'a str)],
    /// The only capabilities it has, as `BPF`.
    pub capabilities: Option<&'a [String]>,
    /// Where pods come from, if not from the directory.
    pub api: Option<&'a ApiServer>,
    /// The same by its kubeconfig, for an agent in another network namespace than the server.
    pub kubeconfig: Option<&'a str>,
    /// `cgroup.procs` of the memory cgroup that it is to be in.
    pub memory: Option<&'a Path>,
    /// It has read everything within this; for few pods there is a default.
    pub ready_within: Option<Duration>,
    /// Another build than [`binary`].
    pub binary: Option<&'a Path>,
}

impl<'a> Extra<'a> {
    /// Nothing but these arguments.
    pub fn arguments(arguments: &'a [&'a str]) -> Self {
        Self {
            arguments,
            ..Self::default()
        }
    }

    /// Nothing but these environment variables.
    pub fn variables(variables: &'a [(&'a str, &'a str)]) -> Self {
        Self {
            variables,
            ..Self::default()
        }
    }

    /// Nothing but pods from this API server.
    pub fn api(api: &'a ApiServer) -> Self {
        Self {
            api: Some(api),
            ..Self::default()
        }
    }
}

/// The name of the node that agents under test run on.
pub const NODE: &str = "node-1";

/// A running agent; dropping it kills it.
#[derive(Debug)]
pub struct Agent {
    child: Process,
    /// Where it keeps things.
    pub places: Places,
}

impl Agent {
    /// Starts one and waits until it has applied its manifests.
    pub fn start(places: &Places) -> Result<Self> {
        Self::start_with(places, &Extra::default())
    }

    /// As [`Agent::start`], with more arguments or variables.
    pub fn start_with(places: &Places, extra: &Extra<'_>) -> Result<Self> {
        let mut agent = Self::spawn_with(places, extra)?;
        let ended = eventually(extra.ready_within.unwrap_or(READY_TIMEOUT), || {
            if let Some(ended) = agent.child.try_wait()? {
                return Ok(Some(ended));
            }
            let status = places.json(&["status", "-o", "json"])?;
            ensure!(status["agent"]["ready"] == true, "the agent is not ready");
            Ok(None)
        });
        match ended.with_context(|| format!("the agent's log:\n{}", places.log()))? {
            None => Ok(agent),
            Some(ended) => bail!("the agent ended ({ended}):\n{}", places.log()),
        }
    }

    /// Starts one, no more.
    pub fn spawn(places: &Places) -> Result<Self> {
        Self::spawn_with(places, &Extra::default())
    }

    /// As [`Agent::spawn`], with more arguments or variables.
    pub fn spawn_with(places: &Places, extra: &Extra<'_>) -> Result<Self> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&places.log)?;
        let binary = extra
            .binary
            .map_or_else(binary, |path| Ok(path.to_owned()))?;
        let mut command = places.command_of(&binary, &["agent"])?;
        if let Some(capabilities) = extra.capabilities {
            command = limited(&command, capabilities);
        }
        if let Some(procs) = extra.memory {
            command = within(&command, procs);
        }
        command.arg("--cgroup").arg(&places.cgroup);
        let by_api = extra.api.map(ApiServer::kubeconfig);
        match by_api.or(extra.kubeconfig.map(Path::new)) {
            Some(kubeconfig) => command
                .args(["--node-name", NODE])
                .env("KUBECONFIG", kubeconfig),
            None => command.arg("--pods-dir").arg(&places.pods),
        };
        if extra.arguments.contains(&"--ambient") {
            command.arg("--ztunnel-socket").arg(places.ztunnel_socket());
        }
        command
            .args(extra.arguments)
            .envs(extra.variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(Self {
            child: Process::start(&mut command)?,
            places: places.clone(),
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with a signal and waits for that; how long it took.
    pub fn end(&mut self, signal: Signal) -> Result<Duration> {
        let start = Instant::now();
        self.child.signal(signal)?;
        self.child.wait()?;
        Ok(start.elapsed())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for it to end by itself.
    pub fn wait(mut self) -> Result<std::process::ExitStatus> {
        eventually(WAIT_TIMEOUT, || {
            let status = self.child.try_wait()?;
            status.context("the agent still runs")
        })
    }

    /// Processor time its threads have used so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let process = procfs::process::Process::new(self.child.id() as i32)?;
        let mut nanos = 0;
        for task in process.tasks()?.flatten() {
            nanos += task.schedstat()?.sum_exec_runtime;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Forgets the most memory it has had so far: `/proc/PID/clear_refs`, value 5.
    pub fn reset_peak_memory(&self) -> Result<()> {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?;
        Ok(())
    }

    /// The most resident memory it has had, in KiB.
    pub fn peak_memory(&self) -> Result<u64> {
        let status = procfs::process::Process::new(self.child.id() as i32)?.status()?;
        status.vmhwm.context("VmHWM")
    }

    /// Resident memory in KiB, and the part of it that is not mapped from files.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let status = procfs::process::Process::new(self.child.id() as i32)?.status()?;
        Ok((
            status.vmrss.context("VmRSS")?,
            status.rssanon.context("RssAnon")?,
        ))
    }
}

/// The same command, in a cgroup from its first moment on.
fn within(command: &Command, procs: &Path) -> Command {
    let mut within = Command::new("sh");
    within
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(procs)
        .arg(command.get_program())
        .args(command.get_args());
    within
}

/// The same command as root without other capabilities, as container runtimes start it.
pub fn limited(command: &Command, capabilities: &[String]) -> Command {
    let set: String = capabilities
        .iter()
        .map(|name| format!(",+{}", name.to_lowercase()))
        .collect();
    let mut limited = Command::new("setpriv");
    limited
        .arg(format!("--bounding-set=-all{set}"))
        .arg("--inh-caps=-all")
        .arg(command.get_program())
        .args(command.get_args());
    limited
}

/// The binary under test: `SIDETRACK_BIN`, or the build of this checkout, with which the tests have
/// their dependencies in common.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SIDETRACK_BIN") {
        return Ok(path.into());
    }
    let path = checkout("target/debug/sidetrack");
    if !path.exists() {
        bail!(
            "{} is not built: run `cargo build --workspace`",
            path.display()
        );
    }
    Ok(path)
}
