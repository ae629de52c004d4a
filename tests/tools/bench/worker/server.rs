//! The end that accepts.

use std::{
    io::{self, Read as _, Write as _},
    mem::MaybeUninit,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, Socket, Type};

use super::{Answer, QUERY};

/// Room for all connections of a turn: none is accepted while they are made.
const BACKLOG: i32 = 4096;
const PAUSE: Duration = Duration::from_micros(200);

/// Sockets of IPv4 and IPv6. Several may have one port.
pub fn listen(port: u16, transparent: bool) -> io::Result<[Socket; 2]> {
    let v4 = reusable(Domain::IPV4)?;
    if transparent {
        v4.set_ip_transparent_v4(true)?;
    }
    v4.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    let v6 = reusable(Domain::IPV6)?;
    v6.set_only_v6(true)?;
    v6.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    for socket in [&v4, &v6] {
        socket.listen(BACKLOG)?;
    }
    Ok([v4, v6])
}

fn reusable(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    Ok(socket)
}

/// A socket for datagrams.
pub fn bind(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind(&to.into())?;
    Ok(socket)
}

/// Answers so many datagrams with what they hold.
pub fn answer(socket: &Socket, times: u32) -> io::Result<Answer> {
    let mut buffer = [MaybeUninit::uninit(); QUERY];
    for _ in 0..times {
        let (_, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&[0; QUERY], &from)?;
    }
    Ok(Answer::default())
}

/// Takes everything that waits to be accepted.
pub fn drain(listener: &Socket) -> io::Result<Answer> {
    listener.set_nonblocking(true)?;
    while listener.accept().is_ok() {}
    Ok(Answer::default())
}

/// Serves one connection to its end.
pub fn echo(listener: &Socket) -> io::Result<Answer> {
    listener.set_nonblocking(false)?;
    let (mut accepted, _) = listener.accept()?;
    accepted.set_tcp_nodelay(true)?;
    let mut buffer = [0; 16 * 1024];
    loop {
        match accepted.read(&mut buffer) {
            Ok(0) | Err(_) => return Ok(Answer::default()),
            Ok(read) => accepted.write_all(&buffer[..read])?,
        }
    }
}

/// Answers each so many bytes with one, until the connection ends.
pub fn drink(listener: &Socket, size: usize) -> io::Result<Answer> {
    listener.set_nonblocking(false)?;
    let (mut accepted, _) = listener.accept()?;
    accepted.set_tcp_nodelay(true)?;
    let mut buffer = vec![0; size];
    while accepted.read_exact(&mut buffer).is_ok() {
        accepted.write_all(&[1])?;
    }
    Ok(Answer::default())
}

/// Serves so many connections as a sidecar does: asks where to, then a byte each way.
pub fn serve(listener: &Socket, times: u32) -> io::Result<Answer> {
    listener.set_nonblocking(false)?;
    let mut byte = [0];
    for _ in 0..times {
        let (mut accepted, _) = listener.accept()?;
        // Without a redirect there is none.
        let _ = accepted.original_dst_v4();
        accepted.read_exact(&mut byte)?;
        accepted.write_all(&byte)?;
        // Until the client closes.
        let _ = accepted.read(&mut byte);
    }
    Ok(Answer::default())
}

/// The body of every response.
pub const BODY: &[u8] = b"hello from outside\n";

/// Serves HTTP forever.
pub fn web(listener: &Socket) -> io::Result<Answer> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", BODY.len());
    let response = [head.as_bytes(), BODY].concat();
    for_ever(listener, move |received| {
        received.ends_with(b"\r\n\r\n").then(|| response.clone())
    })
}

/// Returns every byte, forever.
pub fn bytes(listener: &Socket) -> io::Result<Answer> {
    for_ever(listener, |received| Some(received.to_vec()))
}

/// Serves each connection in a thread of its own; `answer` gives what is to be sent for what has come.
fn for_ever(
    listener: &Socket,
    answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Clone + Send + 'static,
) -> io::Result<Answer> {
    listener.set_nonblocking(false)?;
    loop {
        let (mut accepted, _) = listener.accept()?;
        accepted.set_tcp_nodelay(true)?;
        let answer = answer.clone();
        thread::spawn(move || -> io::Result<()> {
            let mut received = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                let read = accepted.read(&mut buffer)?;
                if read == 0 {
                    return Ok(());
                }
                received.extend(&buffer[..read]);
                if let Some(text) = answer(&received) {
                    received.clear();
                    accepted.write_all(&text)?;
                }
            }
        });
    }
}

/// Accepts and closes for this time.
pub fn sink(listener: &Socket, length: Duration) -> io::Result<Answer> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    while start.elapsed() < length {
        match listener.accept() {
            Ok((mut accepted, _)) => {
                accepted.set_nonblocking(false)?;
                let _ = accepted.read(&mut [0]);
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
    Ok(Answer::default())
}

/// Accepts, and keeps what it accepts, until nothing has come for a while.
pub fn keep(listener: &Socket, held: &mut Vec<Socket>) -> io::Result<Answer> {
    const QUIET: Duration = Duration::from_secs(2);
    listener.set_nonblocking(true)?;
    let mut last = Instant::now();
    while last.elapsed() < QUIET {
        match listener.accept() {
            Ok((accepted, _)) => {
                held.push(accepted);
                last = Instant::now();
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
    Ok(Answer {
        count: held.len() as u64,
        ..Answer::default()
    })
}
