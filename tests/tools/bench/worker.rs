//! A process in a pod that connects and measures, or listens. Nothing else runs in it, so that a
//! figure is the kernel's time. Commands come on stdin, one number a line goes back.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use lab::{command::die_with_parent, network::PodNet};
use nix::{
    sched::{CloneFlags, CpuSet, sched_setaffinity, setns},
    unistd::{Gid, Pid, Uid, setgroups, setresgid, setresuid},
};
use socket2::{Domain, Protocol, Socket, Type};

const WORD: &str = "worker";
/// Room for all connections of a turn: none is accepted while they are made.
const BACKLOG: i32 = 4096;

/// A running worker; dropping it ends it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    pipe: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Worker {
    /// Starts one in a pod, as a user; it listens on `port` if that is not 0.
    pub fn start(pod: &PodNet, uid: u32, port: u16) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([WORD, &pod.path()])
            .arg(&pod.cgroup)
            .args([uid.to_string(), port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = die_with_parent(&mut command).spawn()?;
        let stdin = child.stdin.take().context("stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout")?);
        let worker = Self {
            child,
            pipe: Mutex::new((stdin, stdout)),
        };
        // It listens when it answers.
        worker.ask("ready")?;
        Ok(worker)
    }

    /// Sends a command and waits for the number it answers.
    pub fn ask(&self, words: &str) -> Result<u64> {
        self.tell(words)?;
        self.answer().with_context(|| words.to_owned())
    }

    /// Sends a command.
    pub fn tell(&self, words: &str) -> Result<()> {
        let mut pipe = self
            .pipe
            .lock()
            .expect("no thread panics while it holds the lock");
        Ok(writeln!(pipe.0, "{words}")?)
    }

    /// Waits for a number.
    pub fn answer(&self) -> Result<u64> {
        let mut line = String::new();
        let mut pipe = self
            .pipe
            .lock()
            .expect("no thread panics while it holds the lock");
        pipe.1.read_line(&mut line)?;
        line.trim()
            .parse()
            .with_context(|| format!("it said {line:?}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs as a worker if the command line says so.
pub fn run_if_worker() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [word, netns, cgroup, uid, port] = words.as_slice() else {
        return None;
    };
    if word != WORD {
        return None;
    }
    Some(match work(netns, cgroup, uid, port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn work(netns: &str, cgroup: &str, uid: &str, port: &str) -> Result<()> {
    fs::write(
        format!("{cgroup}/cgroup.procs"),
        std::process::id().to_string(),
    )?;
    setns(File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
    // All on one processor: otherwise a figure shows where the scheduler put the two ends.
    let mut one = CpuSet::new();
    one.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &one)?;
    let id: u32 = uid.parse()?;
    setgroups(&[])?;
    let gid = Gid::from_raw(id);
    setresgid(gid, gid, gid)?;
    let uid = Uid::from_raw(id);
    setresuid(uid, uid, uid)?;
    let listener = match port.parse()? {
        0 => None,
        port => Some(listen(port)?),
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match (words.as_slice(), &listener) {
            (["ready"], _) => 0,
            (["drain"], Some(listener)) => drain(listener)?,
            (["echo"], Some(listener)) => echo(listener)?,
            (["connect", to, times], _) => connects(to.parse()?, times.parse()?)?,
            (["round-trip", to, times], _) => round_trips(to.parse()?, times.parse()?)?,
            _ => bail!("cannot {line:?}"),
        };
        println!("{answer}");
    }
    Ok(())
}

fn listen(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Takes everything that waits to be accepted; how many there were.
fn drain(listener: &Socket) -> io::Result<u64> {
    listener.set_nonblocking(true)?;
    let mut count = 0;
    while listener.accept().is_ok() {
        count += 1;
    }
    Ok(count)
}

/// Serves one connection to its end.
fn echo(listener: &Socket) -> io::Result<u64> {
    listener.set_nonblocking(false)?;
    let (mut accepted, _) = listener.accept()?;
    accepted.set_tcp_nodelay(true)?;
    let mut buffer = [0; 256];
    loop {
        match accepted.read(&mut buffer) {
            Ok(0) | Err(_) => return Ok(0),
            Ok(read) => accepted.write_all(&buffer[..read])?,
        }
    }
}

fn dialed(to: SocketAddr) -> io::Result<(Socket, Duration)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    // Closed by a reset, nothing waits in TIME_WAIT for the next turn.
    socket.set_linger(Some(Duration::ZERO))?;
    let start = Instant::now();
    socket.connect(&to.into())?;
    Ok((socket, start.elapsed()))
}

/// Median time of connect(2) in nanoseconds.
fn connects(to: SocketAddr, times: u32) -> io::Result<u64> {
    let mut nanos = Vec::new();
    for _ in 0..times {
        nanos.push(dialed(to)?.1.as_nanos() as u64);
    }
    Ok(median(&mut nanos))
}

/// Median time of a small message there and back in nanoseconds.
fn round_trips(to: SocketAddr, times: u32) -> io::Result<u64> {
    let (mut socket, _) = dialed(to)?;
    socket.set_tcp_nodelay(true)?;
    let mut nanos = Vec::new();
    let mut buffer = [0; 64];
    for _ in 0..times {
        let start = Instant::now();
        socket.write_all(&buffer)?;
        socket.read_exact(&mut buffer)?;
        nanos.push(start.elapsed().as_nanos() as u64);
    }
    Ok(median(&mut nanos))
}

/// The middle one.
pub fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
