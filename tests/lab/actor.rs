//! A process inside a pod, driven over its stdin and stdout.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Mutex,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command::built,
    command::die_with_parent,
    protocol::{Connected, Dial, Flooded, Identity, Listen, Request, Response, Reused},
};

/// A running actor. Dropping it ends the process and everything it opened.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    pipe: Mutex<Pipe>,
}

#[derive(Debug)]
struct Pipe {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts one as root in a network namespace and a cgroup.
    pub fn start(netns: &str, cgroup: &Path) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command
            .arg(format!("/run/netns/{netns}"))
            .arg(cgroup)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = die_with_parent(&mut command)
            .spawn()
            .context("start an actor")?;
        let pipe = Pipe {
            stdin: child.stdin.take().context("the actor's stdin")?,
            stdout: BufReader::new(child.stdout.take().context("the actor's stdout")?),
        };
        Ok(Self {
            child,
            pipe: Mutex::new(pipe),
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request and waits for the response.
    pub fn ask(&self, request: &Request) -> Result<Response> {
        let mut pipe = self
            .pipe
            .lock()
            .expect("no test panics while it holds the pipe");
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        pipe.stdin
            .write_all(line.as_bytes())
            .context("write to the actor")?;
        let mut answer = String::new();
        pipe.stdout
            .read_line(&mut answer)
            .context("read from the actor")?;
        match serde_json::from_str(&answer).with_context(|| format!("the actor said {answer:?}"))? {
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

    /// Connects one after the other.
    pub fn dial_all(&self, dials: Vec<Dial>) -> Result<Vec<Result<Connected, i32>>> {
        match self.ask(&Request::DialAll(dials))? {
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
    pub fn again(&self) -> Result<Vec<Result<Connected, i32>>> {
        match self.ask(&Request::Again)? {
            Response::AllDialed(results) => Ok(results),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Listens on one socket; answers the listener's id.
    pub fn listen(&self, owner: &Identity, address: SocketAddr) -> Result<usize> {
        self.listen_group(Listen {
            address,
            owner: owner.clone(),
            sockets: 1,
            v6_only: true,
            transparent: false,
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

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The actor's binary.
///
/// # Errors
/// If it is not built.
pub fn binary() -> Result<std::path::PathBuf> {
    built("sidetrack-actor")
}
