//! The end that connects.

use std::{
    io::{self, Read as _, Write as _},
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, Socket, Type};

use super::{Answer, QUERY, server::BODY};

/// The address that connections begin at, if it is another host's.
static FROM: OnceLock<Ipv4Addr> = OnceLock::new();
/// The mark of a transparent sidecar's connections.
const MARK: u32 = 1337;

/// All later connections begin at an address that is another host's.
pub fn begin_at(from: Ipv4Addr) {
    let _ = FROM.set(from);
}

fn socket(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(from) = FROM.get() {
        socket.set_ip_transparent_v4(true)?;
        socket.set_mark(MARK)?;
        socket.bind(&SocketAddr::from((*from, 0)).into())?;
    }
    Ok(socket)
}

fn nanos(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

/// A connection that is closed by a reset: nothing waits in TIME_WAIT for the next turn.
fn dialed(to: SocketAddr) -> io::Result<(Socket, u64)> {
    let socket = socket(to)?;
    socket.set_linger(Some(Duration::ZERO))?;
    let start = Instant::now();
    socket.connect(&to.into())?;
    Ok((socket, nanos(start)))
}

/// connect(2).
pub fn connects(to: SocketAddr, times: u32) -> io::Result<Answer> {
    let mut all = Vec::new();
    for _ in 0..times {
        all.push(dialed(to)?.1);
    }
    Ok(Answer::of(all))
}

/// connect(2) to so many ports from the destination's on, one after the other. Each call begins where the last one ended.
pub fn connects_to_ports(to: SocketAddr, times: u32, count: u16) -> io::Result<Answer> {
    connects_to_each(times, count, |next| {
        SocketAddr::new(to.ip(), to.port() + next)
    })
}

/// The same to so many addresses from the destination's on.
pub fn connects_to_addresses(to: SocketAddr, times: u32, count: u16) -> io::Result<Answer> {
    connects_to_each(times, count, |next| {
        let ip = match to.ip() {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() + u32::from(next)).into(),
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() + u128::from(next)).into(),
        };
        SocketAddr::new(ip, to.port())
    })
}

fn connects_to_each(
    times: u32,
    count: u16,
    destination: impl Fn(u16) -> SocketAddr,
) -> io::Result<Answer> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let mut all = Vec::new();
    for _ in 0..times {
        let next = NEXT.load(Ordering::Relaxed) % count;
        NEXT.store(next + 1, Ordering::Relaxed);
        let to = destination(next);
        let dialed = dialed(to).map_err(|err| io::Error::other(format!("{to}: {err}")))?;
        all.push(dialed.1);
    }
    Ok(Answer::of(all))
}

/// connect, a byte each way, close.
pub fn sessions(to: SocketAddr, times: u32) -> io::Result<Answer> {
    let mut all = Vec::new();
    let mut byte = [1];
    for _ in 0..times {
        let start = Instant::now();
        let mut socket = socket(to)?;
        socket.connect(&to.into())?;
        socket.write_all(&byte)?;
        socket.read_exact(&mut byte)?;
        drop(socket);
        all.push(nanos(start));
    }
    Ok(Answer::of(all))
}

/// HTTP requests, on one connection or each on its own.
pub fn requests(to: SocketAddr, times: u32, keep_alive: bool) -> io::Result<Answer> {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
    let connect = || -> io::Result<Socket> {
        let socket = socket(to)?;
        socket.connect(&to.into())?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket)
    };
    let mut kept = if keep_alive { Some(connect()?) } else { None };
    let mut all = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        let mut own = None;
        let socket = match &mut kept {
            Some(socket) => socket,
            None => own.insert(connect()?),
        };
        socket.write_all(REQUEST)?;
        read_response(socket)?;
        drop(own);
        all.push(nanos(start));
    }
    Ok(Answer::of(all))
}

/// Up to the end of its body, which says that it is the end.
fn read_response(socket: &mut Socket) -> io::Result<()> {
    let mut response = Vec::new();
    let mut buffer = [0; 4096];
    while !response.ends_with(BODY) {
        let read = socket.read(&mut buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        response.extend(&buffer[..read]);
    }
    if response.starts_with(b"HTTP/1.1 200") {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&response).into_owned();
    Err(io::Error::other(text))
}

/// A message there and back.
pub fn round_trips(to: SocketAddr, times: u32, size: usize) -> io::Result<Answer> {
    let (mut socket, _) = dialed(to)?;
    socket.set_tcp_nodelay(true)?;
    let mut all = Vec::new();
    let mut buffer = vec![0; size];
    for _ in 0..times {
        let start = Instant::now();
        socket.write_all(&buffer)?;
        socket.read_exact(&mut buffer)?;
        all.push(nanos(start));
    }
    Ok(Answer::of(all))
}

/// How long an answer may take: one that is lost ends the measurement.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

fn datagrams() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(socket)
}

fn receive_from(socket: &Socket, server: SocketAddr) -> io::Result<()> {
    let mut buffer = [MaybeUninit::uninit(); QUERY];
    let (_, from) = socket.recv_from(&mut buffer)?;
    if from.as_socket() == Some(server) {
        return Ok(());
    }
    Err(io::Error::other(format!("an answer of {from:?}")))
}

/// Queries of one socket that is not connected, each after the answer to the last.
pub fn queries(to: SocketAddr, times: u32) -> io::Result<Answer> {
    let socket = datagrams()?;
    let mut all = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        socket.send_to(&[0; QUERY], &to.into())?;
        receive_from(&socket, to)?;
        all.push(nanos(start));
    }
    Ok(Answer::of(all))
}

/// Queries, each of a connected socket of its own.
pub fn connected_queries(to: SocketAddr, times: u32) -> io::Result<Answer> {
    let mut all = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        let socket = datagrams()?;
        socket.connect(&to.into())?;
        socket.send(&[0; QUERY])?;
        receive_from(&socket, to)?;
        drop(socket);
        all.push(nanos(start));
    }
    Ok(Answer::of(all))
}

/// So many bytes at a time, until the other end says that it has them.
pub fn pour(to: SocketAddr, times: u32, size: usize) -> io::Result<Answer> {
    let (mut socket, _) = dialed(to)?;
    socket.set_tcp_nodelay(true)?;
    let mut all = Vec::new();
    let bytes = vec![0; size];
    for _ in 0..times {
        let start = Instant::now();
        socket.write_all(&bytes)?;
        socket.read_exact(&mut [0])?;
        all.push(nanos(start));
    }
    Ok(Answer::of(all))
}

/// Connects and closes in the orderly way for this time; how often, and how often it failed.
pub fn churn(to: SocketAddr, length: Duration) -> io::Result<Answer> {
    let start = Instant::now();
    let mut all = Vec::new();
    let mut failed = 0;
    while start.elapsed() < length {
        let begun = Instant::now();
        match socket(to)?.connect(&to.into()) {
            Ok(()) => all.push(nanos(begun)),
            Err(_) => failed += 1,
        }
    }
    Ok(Answer {
        failed,
        ..Answer::of(all)
    })
}

/// Connects so often, and keeps the connections.
pub fn hold(to: SocketAddr, times: u32, held: &mut Vec<Socket>) -> io::Result<Answer> {
    let mut all = Vec::new();
    let mut failed = 0;
    for _ in 0..times {
        let socket = socket(to)?;
        let start = Instant::now();
        match socket.connect(&to.into()) {
            Ok(()) => {
                all.push(nanos(start));
                held.push(socket);
            }
            Err(_) => failed += 1,
        }
    }
    Ok(Answer {
        failed,
        ..Answer::of(all)
    })
}
