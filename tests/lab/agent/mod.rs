//! The agent under test: the real binary with a bpffs, a cgroup, a socket and a manifest directory
//! of its own.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{apiserver::ApiServer, command::die_with_parent};

/// How long anything the agent is asked for may take.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Paths of one agent.
#[derive(Clone, Debug)]
pub struct Places {
    /// bpffs mount.
    pub bpffs: PathBuf,
    /// Manifest directory.
    pub pods: PathBuf,
    /// Socket.
    pub socket: PathBuf,
    /// The pods' cgroup.
    pub cgroup: PathBuf,
    /// The agent's log.
    pub log: PathBuf,
}

impl Places {
    /// A command of the binary, with the options all commands take.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        self.command_of(&binary()?, words)
    }

    fn command_of(&self, binary: &Path, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary);
        command.args(words);
        let subcommand = words.first().copied();
        if subcommand != Some("install-cni") {
            command.arg("--bpffs").arg(&self.bpffs);
        }
        if subcommand != Some("doctor") {
            command.arg("--socket").arg(&self.socket);
        }
        Ok(command)
    }

    /// Runs a command to its end.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        Ok(self.command(words)?.output()?)
    }

    /// Runs a command that answers JSON and succeeds.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        let output = self.output(words)?;
        if !output.status.success() {
            bail!(
                "{words:?}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        serde_json::from_slice(&output.stdout).context("parse the command's JSON")
    }

    /// The row of a pod, by `namespace/name`.
    pub fn pod(&self, name: &str) -> Result<Option<Value>> {
        let pods = self.json(&["pods", "-o", "json"])?;
        let full = |pod: &Value| {
            format!(
                "{}/{}",
                pod["namespace"].as_str().unwrap_or_default(),
                pod["name"].as_str().unwrap_or_default()
            )
        };
        Ok(pods
            .as_array()
            .into_iter()
            .flatten()
            .find(|pod| full(pod) == name)
            .cloned())
    }

    /// Waits until a pod's row is as wanted.
    pub fn wait_pod(
        &self,
        name: &str,
        wanted: impl Fn(Option<&Value>) -> bool,
    ) -> Result<Duration> {
        let start = Instant::now();
        loop {
            let pod = self.pod(name);
            if let Ok(pod) = &pod
                && wanted(pod.as_ref())
            {
                return Ok(start.elapsed());
            }
            if start.elapsed() > PATIENCE {
                bail!("pod {name} is {pod:?}; the agent's log:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a pod is enrolled without a problem.
    pub fn wait_enrolled(&self, name: &str) -> Result<Duration> {
        self.wait_pod(name, |pod| {
            pod.is_some_and(|pod| pod["state"] == "enrolled" && pod["reason"].is_null())
        })
    }

    /// Waits until a map has so many rows. A policy's rows go a second after its last pod, for the
    /// sake of programs that run.
    pub fn wait_rows(&self, map: &str, wanted: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            let rows = self.map(map)?;
            if rows.len() == wanted {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!(
                    "{map} has {} rows instead of {wanted}: {rows:?}",
                    rows.len()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The agent's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Rows of a pinned map.
    pub fn map(&self, name: &str) -> Result<Vec<Value>> {
        let path = self.bpffs.join("sidetrack/v2/maps").join(name);
        let dump = crate::command::run_words(&[
            "bpftool",
            "-j",
            "map",
            "dump",
            "pinned",
            &path.to_string_lossy(),
        ])?;
        let rows: Value = serde_json::from_str(&dump).context("parse bpftool's JSON")?;
        Ok(rows.as_array().cloned().unwrap_or_default())
    }
}

/// No row of any pod, no link, no policy.
pub fn nothing_is_left(places: &Places) -> Result<()> {
    for map in [
        "POD_BY_NETNS",
        "POLICY_BY_ID",
        "PORT_RULES",
        "RANGE_RULES",
        "OWNER_RULES",
        "ROUTE_BY_POD",
        "IFACE_BY_POD",
        "LISTENERS",
        "COUNT_BY_RULE",
        "HANDSHAKES_BY_POD",
    ] {
        places.wait_rows(map, 0)?;
    }
    let pods = places.bpffs.join("sidetrack/v2/pods");
    ensure!(
        fs::read_dir(&pods)?.next().is_none(),
        "links are left in {}",
        pods.display()
    );
    Ok(())
}

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
    /// The same by its kubeconfig, for whoever is elsewhere than the server.
    pub kubeconfig: Option<&'a str>,
    /// Another build than [`binary`].
    pub binary: Option<&'a Path>,
}

/// The node that agents under test are told they run on.
pub const NODE: &str = "node-1";

/// A running agent; dropping it kills it.
#[derive(Debug)]
pub struct Agent {
    child: Child,
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
        let start = Instant::now();
        loop {
            let status = places.json(&["status", "-o", "json"]);
            if status.is_ok_and(|status| status["agent"]["ready"] == true) {
                return Ok(agent);
            }
            if let Some(ended) = agent.child.try_wait()? {
                bail!("the agent ended ({ended}):\n{}", places.log());
            }
            if start.elapsed() > 2 * PATIENCE {
                bail!("the agent is not ready:\n{}", places.log());
            }
            std::thread::sleep(Duration::from_millis(20));
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
        command.arg("--cgroup").arg(&places.cgroup);
        let by_api = extra.api.map(ApiServer::kubeconfig);
        match by_api.or(extra.kubeconfig.map(Path::new)) {
            Some(kubeconfig) => command
                .args(["--node-name", NODE])
                .env("KUBECONFIG", kubeconfig),
            None => command.arg("--pods-dir").arg(&places.pods),
        };
        command
            .args(extra.arguments)
            .envs(extra.variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = die_with_parent(&mut command)
            .spawn()
            .context("start the agent")?;
        Ok(Self {
            child,
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
        kill(Pid::from_raw(self.child.id() as i32), signal)?;
        self.child.wait()?;
        Ok(start.elapsed())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for it to end by itself.
    pub fn wait(mut self) -> Result<std::process::ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > PATIENCE {
                bail!("the agent still runs");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
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

    /// Resident memory in KiB, and the part of it that is not mapped from files.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let status = procfs::process::Process::new(self.child.id() as i32)?.status()?;
        Ok((
            status.vmrss.context("VmRSS")?,
            status.rssanon.context("RssAnon")?,
        ))
    }
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

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary under test: `SIDETRACK_BIN`, or the release build of this checkout.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SIDETRACK_BIN") {
        return Ok(path.into());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/sidetrack");
    if !path.exists() {
        bail!("{} is not built: run `cargo xtask build`", path.display());
    }
    Ok(path)
}
