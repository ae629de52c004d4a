//! A process inside a pod, driven over its stdin and stdout.

use std::{fs, net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    command::built,
    helper::Helper,
    protocol::{Connected, Dial, Flooded, Identity, Listen, Request, Response, Reused},
    wait::eventually,
};

/// A running actor. Dropping it ends the process and everything it opened.
#[derive(Debug)]
pub struct Actor(Helper);

impl Actor {
    /// Starts one as root in a network namespace and a cgroup.
    pub fn start(netns: &str, cgroup: &Path) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command.arg(format!("/run/netns/{netns}")).arg(cgroup);
        Helper::start(command).map(Self)
    }

    /// Starts one in a cgroup that makes its sockets in a network namespace and marks them, without being in it.
    pub fn visit(netns: &str, cgroup: &Path, mark: u32) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command.arg(format!("/run/netns/{netns}")).arg(cgroup);
        command.args(["--visit", &mark.to_string()]);
        Helper::start(command).map(Self)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Stops it, as a process that hangs; returns when none of its threads runs.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        eventually(Duration::from_secs(5), || {
            for task in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
                let stat = fs::read_to_string(task?.path().join("stat"))?;
                let (_, state) = stat.rsplit_once(") ").context("a state")?;
                ensure!(state.starts_with('T'), "a thread still runs: {stat}");
            }
            Ok(())
        })
    }

    /// Lets it run again.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid().cast_signed()), signal)?)
    }

    /// Sends a request and waits for the response.
    pub fn ask(&self, request: &Request) -> Result<Response> {
        match self.0.ask(request)? {
            Response::Failed(error) => bail!("actor: {error}"),
            response => Ok(response),
        }
    }

    /// Connects; the errno if that fails.
    pub fn dial(&self, dial: Dial) -> Result<Result<Connected, i32>> {
        match self.ask(&Request::Dial(Box::new(dial)))? {
            Response::Dialed(result) => Ok(result.map(|connected| *connected)),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Connects as someone to an address; that must succeed.
    pub fn connect(&self, who: &Identity, to: SocketAddr) -> Result<Connected> {
        let connected = self.dial(Dial::new(who, to))?;
        connected.map_err(|errno| anyhow!("uid {} to {to}: errno {errno}", who.uid))
    }

    /// Connects one after the other.
    pub fn dial_all(&self, dials: Vec<Dial>) -> Result<Vec<Result<Connected, i32>>> {
        self.all_dialed(&Request::DialAll(dials))
    }

    /// Connects, some at the same time, for connections that do not depend on each other.
    pub fn dial_together(&self, dials: Vec<Dial>) -> Result<Vec<Result<Connected, i32>>> {
        self.all_dialed(&Request::DialTogether(dials))
    }

    /// Connects one after the other and keeps the connections open.
    pub fn hold_all(&self, dials: Vec<Dial>) -> Result<Vec<Result<Connected, i32>>> {
        self.all_dialed(&Request::HoldAll(dials))
    }

    fn all_dialed(&self, request: &Request) -> Result<Vec<Result<Connected, i32>>> {
        match self.ask(request)? {
            Response::AllDialed(results) => Ok(results),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Connects and keeps the connection open.
    pub fn hold(&self, dial: Dial) -> Result<Result<Connected, i32>> {
        match self.ask(&Request::Hold(Box::new(dial)))? {
            Response::Dialed(result) => Ok(result.map(|connected| *connected)),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Reuses a socket that was connected, as a listener.
    pub fn reuse(&self, to: SocketAddr) -> Result<Reused> {
        match self.ask(&Request::Reuse(to))? {
            Response::Reused(reused) => Ok(reused),
            other => bail!("{other:?}"),
        }
    }

    /// Begins many connections and keeps them.
    pub fn flood(&self, to: SocketAddr, count: usize) -> Result<Flooded> {
        self.flood_how(to, count, false)
    }

    /// The same, where all have connected before the first sends its SYN (TCP_FASTOPEN_CONNECT).
    pub fn flood_deferred(&self, to: SocketAddr, count: usize) -> Result<Flooded> {
        self.flood_how(to, count, true)
    }

    fn flood_how(&self, to: SocketAddr, count: usize, deferred: bool) -> Result<Flooded> {
        let flood = Request::Flood {
            to,
            count,
            deferred,
        };
        match self.ask(&flood)? {
            Response::Flooded(flooded) => Ok(flooded),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Opens many descriptors, watched by one epoll instance so many times altogether.
    pub fn crowd(&self, watches: usize) -> Result<()> {
        self.ask(&Request::Crowd { watches }).map(drop)
    }

    /// Starts so many processes that do nothing; they end with this one.
    pub fn sleepers(&self, count: usize) -> Result<()> {
        self.ask(&Request::Sleepers { count }).map(drop)
    }

    /// Counts the held connections that still carry data.
    pub fn echo(&self) -> Result<usize> {
        match self.ask(&Request::Echo)? {
            Response::Count(count) => Ok(count),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// The held connections as both ends see them now.
    pub fn reread_names(&self) -> Result<Vec<Result<Connected, i32>>> {
        self.all_dialed(&Request::Again)
    }

    /// Listens on one socket; answers the listener's id.
    pub fn listen(&self, owner: &Identity, address: SocketAddr) -> Result<usize> {
        self.listen_group(Listen {
            address,
            owner: owner.clone(),
            sockets: 1,
            v6_only: true,
            transparent: false,
            mptcp: false,
        })
    }

    /// Listens on a group of sockets.
    pub fn listen_group(&self, listen: Listen) -> Result<usize> {
        match self.ask(&Request::Listen(listen))? {
            Response::Listening(id) => Ok(id),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Closes one socket of a group.
    pub fn close(&self, id: usize, socket: usize) -> Result<()> {
        self.ask(&Request::Close { id, socket }).map(drop)
    }
}

/// The actor's binary.
///
/// # Errors
/// If it is not built.
pub fn binary() -> Result<std::path::PathBuf> {
    built("sidetrack-actor")
}
