//! Connections, one after the other, to targets in random order. Each is reported.

use std::{
    io::{self, BufWriter, Read as _, Write as _},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Result;
use fastrand::Rng;
use parking_lot::{Mutex, RwLock};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::orders;
use crate::wire::{Dialed, Hanging, Hop, Order, Outcome, Report, Target, now};

/// Longer than any connection may take: a SYN is sent again after 1, 3 and 7 seconds.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that takes longer is reported while it hangs. If the SYN is lost, it has been sent again by
/// then.
const HANGS: Duration = Duration::from_millis(2500);
/// How long a report may wait to be sent on.
const FLUSH: Duration = Duration::from_millis(200);

/// Connects until the order to end.
pub fn run(threads: usize, pause: u64, seed: u64) -> Result<()> {
    let targets: Arc<RwLock<Vec<Target>>> = Arc::default();
    let out = Arc::new(Mutex::new(BufWriter::new(io::stdout())));
    let stop = Arc::new(AtomicBool::new(false));
    let pause = Duration::from_millis(pause);
    let running = AtomicUsize::new(threads);
    let in_progress: Vec<_> = (0..threads).map(|_| InProgress::default()).collect();
    thread::scope(|scope| {
        for (thread, own) in in_progress.iter().enumerate() {
            let mut rng = Rng::with_seed(seed ^ (thread as u64) << 32);
            let (targets, out, stop, running) = (&targets, &out, &stop, &running);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let target = {
                        let targets = targets.read();
                        (!targets.is_empty()).then(|| targets[rng.usize(..targets.len())].clone())
                    };
                    if let Some(target) = target {
                        let report = own.dial(&target);
                        say(out, &Dialed::Ended(report));
                    }
                    thread::sleep(pause.mul_f64(0.5 + rng.f64()));
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            // The last connections may hang as well.
            while running.load(Ordering::Relaxed) > 0 {
                thread::sleep(FLUSH);
                for hanging in in_progress.iter().filter_map(InProgress::hangs) {
                    say(&out, &Dialed::Hangs(hanging));
                }
                let _ = out.lock().flush();
            }
        });
        for order in orders() {
            let mut targets = targets.write();
            match order? {
                Order::Add(more) => targets.extend(more),
                Order::Remove(ids) => targets.retain(|target| !ids.contains(&target.id)),
                _ => break,
            }
        }
        stop.store(true, Ordering::Relaxed);
        anyhow::Ok(())
    })?;
    Ok(out.lock().flush()?)
}

fn say(out: &Mutex<BufWriter<io::Stdout>>, what: &Dialed) {
    let line = serde_json::to_string(what).expect("plain data");
    let mut out = out.lock();
    // The process that reads it may have ended.
    let _ = writeln!(out, "{line}");
}

/// The connection of a thread, until it has ended or was reported as hanging.
#[derive(Default)]
struct InProgress(Mutex<Option<Hanging>>);

impl InProgress {
    fn dial(&self, target: &Target) -> Report {
        let start = now();
        self.set(Some(Hanging {
            target: target.id,
            since: start,
        }));
        let outcome = connect(target);
        self.set(None);
        Report {
            target: target.id,
            time: [start, now()],
            outcome,
        }
    }

    fn set(&self, connection: Option<Hanging>) {
        *self.0.lock() = connection;
    }

    /// The connection if it hangs, once.
    fn hangs(&self) -> Option<Hanging> {
        let is_late = |it: &mut Hanging| now() - it.since > HANGS.as_nanos() as u64;
        self.0.lock().take_if(is_late)
    }
}

fn connect(target: &Target) -> Outcome {
    let socket = match made(target) {
        Ok(socket) => socket,
        Err(error) => return Outcome::NotMade(errno(&error)),
    };
    match talk(socket) {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Broken(errno(&error)),
    }
}

fn made(target: &Target) -> io::Result<Socket> {
    let domain = if target.mapped {
        Domain::IPV6
    } else {
        Domain::for_address(target.to)
    };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // Ended by a reset, no connection waits in TIME_WAIT for its port to be missed.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
    socket.set_write_timeout(Some(WAIT_TIMEOUT))?;
    if let Some(mark) = target.mark {
        socket.set_ip_transparent_v4(true)?;
        socket.set_mark(mark)?;
    }
    if let Some(source) = target.bind {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect(&address(target.to, target.mapped))?;
    Ok(socket)
}

fn talk(mut socket: Socket) -> io::Result<Outcome> {
    let name = |address: SockAddr| address.as_socket().ok_or(io::ErrorKind::InvalidData);
    // A reset may come at any time; then there is no peer to name.
    let local = canonical(name(socket.local_addr()?)?);
    let peer = canonical(name(socket.peer_addr()?)?);
    let hops = Hop::read_all(&mut socket).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => reset_by_a_byte(&mut socket).unwrap_or(error),
        _ => error,
    })?;
    Ok(Outcome::Answered { local, peer, hops })
}

/// What a byte is answered on a connection that was silent for so long, if that is an error.
///
/// Where both listeners of a group close during a handshake, Linux may forget the server's end
/// without a reset: the client's is established, and learns of it only by sending. Measured without
/// interception on 6.18: 10 of 1.6 million connections, 1 of 2.5 million with `tcp_migrate_req`.
fn reset_by_a_byte(socket: &mut Socket) -> Option<io::Error> {
    const ANSWER: Duration = Duration::from_secs(1);
    socket.set_read_timeout(Some(ANSWER)).ok()?;
    let answer = socket
        .write_all(b"?")
        .and_then(|()| socket.read(&mut [0; 1]));
    answer
        .err()
        .filter(|it| it.kind() != io::ErrorKind::WouldBlock)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn address(to: SocketAddr, mapped: bool) -> SockAddr {
    match to {
        SocketAddr::V4(v4) if mapped => {
            SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()).into()
        }
        _ => to.into(),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests;
