//! The webhook under test: the real binary, as root without any capability.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::certificates::Mount;
use crate::{
    agent::{WAIT_TIMEOUT, binary, limited},
    command::Process,
};

/// Of the container that replaces istio-init.
pub const IMAGE: &str = "registry.example.com/sidetrack:1";

/// One that runs; dropping it kills it.
pub struct Server {
    child: Process,
    log: PathBuf,
    /// Where it answers.
    pub address: SocketAddr,
}

impl Server {
    /// Starts one and waits until it listens.
    pub async fn start(mount: &Mount, more: &[&str]) -> Result<Self> {
        let log = mount.path().join("log");
        let command = command(mount, more)?;
        let mut command = limited(&command, &[]);
        command.stderr(File::create(&log)?);
        let child = Process::start(&mut command)?;
        let mut server = Self {
            child,
            log,
            address: ([0, 0, 0, 0], 0).into(),
        };
        let address = server.wait_logged("listening").await?["address"].clone();
        let address = address.as_str().context("an address in the log")?;
        server.address = address.parse()?;
        Ok(server)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a line whose message has these words; its fields.
    pub async fn wait_logged(&mut self, words: &str) -> Result<Value> {
        let start = Instant::now();
        loop {
            for line in self.log().lines() {
                let line: Value = serde_json::from_str(line).unwrap_or_default();
                let fields = &line["fields"];
                if fields["message"]
                    .as_str()
                    .is_some_and(|it| it.contains(words))
                {
                    return Ok(fields.clone());
                }
            }
            if start.elapsed() > WAIT_TIMEOUT {
                bail!("no line with {words:?} in the log:\n{}", self.log());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the webhook ended ({status}):\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Resident memory now, and the most so far, in KiB.
    pub fn memory(&self) -> Result<[u64; 2]> {
        let status = procfs::process::Process::new(self.child.id() as i32)?.status()?;
        let [now, most] = [status.vmrss, status.vmhwm].map(|kib| kib.context("in its status"));
        Ok([now?, most?])
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.child.signal(signal)
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > 2 * WAIT_TIMEOUT {
                bail!("the webhook still runs:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// As in the Deployment.
const TUNABLES: &str = "glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072";

/// The webhook's program, beside the agent's.
pub fn program() -> Result<PathBuf> {
    Ok(binary()?.with_file_name("sidetrack-webhook"))
}

/// The command line.
pub fn command(mount: &Mount, more: &[&str]) -> Result<Command> {
    let mut command = Command::new(program()?);
    command
        .env("GLIBC_TUNABLES", TUNABLES)
        .args(["--listen", "127.0.0.1:0", "--log-format", "json"])
        .args(["--gate-image", IMAGE])
        .arg("--tls-cert")
        .arg(mount.cert())
        .arg("--tls-key")
        .arg(mount.key())
        .args(more)
        .stdin(Stdio::null());
    Ok(command)
}
