//! The paths of one agent, and what its commands and maps show.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use sidetrack_common::{LAYOUT_VERSION, names};

use super::{WAIT_TIMEOUT, binary};
use crate::{
    command::run_words,
    product::{Client, Maps, PINNED, Pins, PodState, PodStatus, Policy, block_on},
    wait::eventually,
};

/// How long until the agent has said what it does in a pass over all, such as a repair.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// Where an agent serves ztunnel.
    #[must_use]
    pub fn ztunnel_socket(&self) -> PathBuf {
        self.socket.with_file_name("ztunnel.sock")
    }

    /// The directory of the pins of the layout that this build writes.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.layout(LAYOUT_VERSION)
    }

    /// The directory of the pins of a layout.
    #[must_use]
    pub fn layout(&self, version: u32) -> PathBuf {
        self.bpffs.join(format!("sidetrack/v{version}"))
    }

    /// A command of the binary, with the options all commands take.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        self.command_of(&binary()?, words)
    }

    pub(super) fn command_of(&self, binary: &Path, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary);
        command.args(words);
        let subcommand = words.first().copied();
        if subcommand != Some("install-cni") {
            command.arg("--bpffs").arg(&self.bpffs);
        }
        command.arg("--socket").arg(&self.socket);
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

    /// The cookie of an enrolled pod's network namespace.
    pub fn cookie(&self, name: &str) -> Result<u64> {
        let pod = self.pod(name)?.context("the pod")?;
        pod["netns"]["cookie"].as_u64().context("its cookie")
    }

    /// The problems that `sidetrack status` lists, as JSON.
    pub fn problems(&self) -> Result<String> {
        let status = self.json(&["status", "-o", "json"])?;
        Ok(status["problems"].to_string())
    }

    /// A pod with its whole policy, which lists of pods lack if it is long.
    pub fn whole_pod(&self, name: &str) -> Result<PodStatus> {
        let path = format!("/v1/pods/{name}");
        block_on(async { Client::new(&self.socket).get(&path).await })?
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
            if start.elapsed() > WAIT_TIMEOUT {
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

    /// Waits until a pod is enrolled without a problem, by this policy.
    pub fn wait_policy(&self, name: &str, wanted: &Policy) -> Result<()> {
        eventually(WAIT_TIMEOUT, || {
            let pod = self.whole_pod(name)?;
            let is_enrolled = pod.state == PodState::Enrolled && pod.reason.is_none();
            ensure!(
                is_enrolled && pod.policy.as_deref() == Some(wanted),
                "pod {name} is {:?} by {:?}, not by {wanted:?}: {:?}",
                pod.state,
                pod.policy,
                pod.reason
            );
            Ok(())
        })
        .with_context(|| format!("the agent's log:\n{}", self.log()))
    }

    /// Waits until a map has so many rows. A policy's rows go a second after its last pod, for the
    /// sake of programs that run.
    pub fn wait_rows(&self, map: &str, wanted: usize) -> Result<()> {
        eventually(WAIT_TIMEOUT, || {
            let rows = self.map(map)?;
            ensure!(
                rows.len() == wanted,
                "{map} has {} rows instead of {wanted}: {rows:?}",
                rows.len()
            );
            Ok(())
        })
    }

    /// The agent's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log has a text so many times.
    pub fn wait_logged(&self, text: &str, times: usize) -> Result<()> {
        eventually(LOG_TIMEOUT, || {
            let log = self.log();
            ensure!(log.matches(text).count() == times, "{text}: {log}");
            Ok(())
        })
    }

    /// The pins of a program at interfaces of pods, which begin with a prefix, by the index of the interface.
    pub fn ingress_pins(&self, prefix: &str) -> Result<BTreeMap<u32, PathBuf>> {
        let mut found = BTreeMap::new();
        for pod in fs::read_dir(self.pins().join("pods"))?.flatten() {
            for pin in fs::read_dir(pod.path())?.flatten() {
                let name = pin.file_name();
                let index = name.to_str().and_then(|name| name.strip_prefix(prefix));
                let index = index.and_then(|index| index.parse::<u32>().ok());
                found.extend(index.map(|index| (index, pin.path())));
            }
        }
        Ok(found)
    }

    /// The pinned maps.
    pub fn maps(&self) -> Result<Maps> {
        Maps::open(&Pins::new(&self.bpffs)?)
    }

    /// Rows of a pinned map.
    pub fn map(&self, name: &str) -> Result<Vec<Value>> {
        dump_of(&self.pins().join("maps").join(name))
    }
}

/// Whether a pod's row has this state, and a reason with these words in it.
pub fn is(state: &str, words: &str) -> impl Fn(Option<&Value>) -> bool {
    move |pod| {
        pod.is_some_and(|pod| {
            let reason = pod["reason"].as_str().unwrap_or_default();
            pod["state"] == state && reason.contains(words)
        })
    }
}

/// Whether a pod has no row.
#[must_use]
pub fn gone(pod: Option<&Value>) -> bool {
    pod.is_none()
}

/// The rows of a map, by its pin.
pub fn dump_of(pin: &Path) -> Result<Vec<Value>> {
    let pin = pin.to_string_lossy();
    let dump = run_words(&["bpftool", "-j", "map", "dump", "pinned", &pin])?;
    rows_of(&dump).with_context(|| format!("list the rows of {pin}"))
}

/// The rows in what bpftool prints. Anything but a list is an error: as an empty map it would hide
/// what remains.
fn rows_of(dump: &str) -> Result<Vec<Value>> {
    match serde_json::from_str(dump).context("parse bpftool's JSON")? {
        Value::Array(rows) => Ok(rows),
        other => bail!("bpftool prints no list: {other}"),
    }
}

/// Maps whose rows belong to sockets, to a program, to a packet and to all pods together, not to single pods.
pub const NOT_OF_PODS: [&str; 9] = [
    names::HANDSHAKES_BY_REASON,
    names::EVENTS,
    names::TRACING,
    names::TARGET_SEED,
    names::TRANSLATION,
    names::RECORD_BY_SOCK,
    names::INBOUND_PROGRAM,
    names::INBOUND_NETNS,
    names::FORWARD_PROBE,
];

/// A map has nothing of a pod.
fn nothing_remains_in(places: &Places, map: &str) -> Result<()> {
    let rows = places.map(map)?;
    let is_empty = if map == names::HANDSHAKE_COUNT {
        // Its one row counts those of HANDSHAKES.
        rows.len() == 1 && rows[0]["formatted"]["value"] == 0
    } else {
        rows.is_empty()
    };
    ensure!(is_empty, "rows remain in {map}: {rows:?}");
    Ok(())
}

/// No row of any pod in any map, no link, no policy.
pub fn nothing_remains(places: &Places) -> Result<()> {
    for map in PINNED.iter().filter(|map| !NOT_OF_PODS.contains(map)) {
        eventually(WAIT_TIMEOUT, || nothing_remains_in(places, map))?;
    }
    let pods = places.pins().join("pods");
    ensure!(
        fs::read_dir(&pods)?.next().is_none(),
        "links remain in {}",
        pods.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests;
