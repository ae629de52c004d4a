//! Connects in every manner an application may.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd as _,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lab::protocol::{APP, Connected, Dial, Manner, Names, REREAD_NAMES, Reused};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{identity::run_as, names, ring, tricks, visit};

/// Connects; the errno if that fails.
pub fn dial(dial: &Dial) -> Result<Result<(Connected, Socket), i32>> {
    let mut _beside = None;
    if let Some(destination) = dial.beside {
        let other = Dial {
            destination,
            ..dial.clone()
        };
        match dial_one(&other)? {
            Ok((_, socket)) => _beside = Some(socket),
            Err(errno) => return Ok(Err(errno)),
        }
    }
    dial_one(dial)
}

fn dial_one(dial: &Dial) -> Result<Result<(Connected, Socket), i32>> {
    let created = run_as(&dial.creator, || create(dial))?;
    // Before it is bound, and by root: the creator may have no right to.
    let privileged = created.and_then(|socket| transparent(&socket, dial).map(|()| socket));
    let prepared = match privileged {
        Ok(socket) => run_as(&dial.creator, || prepare(&socket, dial).map(|()| socket))?,
        Err(error) => Err(error),
    };
    match prepared {
        Ok(socket) => dial_on(socket, dial),
        Err(error) => Ok(Err(errno(&error))),
    }
}

fn domain(dial: &Dial) -> Domain {
    if dial.mapped {
        Domain::IPV6
    } else {
        Domain::for_address(dial.destination)
    }
}

/// The options of a sidecar that calls the app from the client's address.
fn transparent(socket: &Socket, dial: &Dial) -> io::Result<()> {
    if dial.transparent {
        names::set_transparent(socket, domain(dial))?;
    }
    if dial.mark != 0 {
        socket.set_mark(dial.mark)?;
    }
    Ok(())
}

/// Connects a socket that is there already.
pub fn dial_on(socket: Socket, dial: &Dial) -> Result<Result<(Connected, Socket), i32>> {
    if let Some(pause) = &dial.pause {
        fs::write(pause.with_extension("created"), "")?;
        while !pause.with_extension("go").exists() {
            thread::sleep(Duration::from_millis(5));
        }
    }
    let connector = dial.connector.as_ref().unwrap_or(&dial.creator);
    let connected = run_as(connector, || connect(&socket, dial))?;
    if let Err(error) = connected {
        return Ok(Err(errno(&error)));
    }
    both_ends(socket)
}

/// How both ends of a connected socket see it.
pub fn both_ends(socket: Socket) -> Result<Result<(Connected, Socket), i32>> {
    let (accepted_by, server) = match greeting(&socket) {
        Ok(greeting) => greeting,
        Err(error) => return Ok(Err(errno(&error))),
    };
    let client = names::of(&socket).context("read the names of a connected socket")?;
    let connected = Connected {
        accepted_by,
        client,
        server,
    };
    Ok(Ok((connected, socket)))
}

/// The error's number; the nearest one for an error that has none.
pub fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EIO,
    })
}

/// Creates the socket and makes it ready to connect.
pub fn open(dial: &Dial) -> io::Result<Socket> {
    let socket = create(dial)?;
    prepare(&socket, dial)?;
    Ok(socket)
}

fn create(dial: &Dial) -> io::Result<Socket> {
    let domain = domain(dial);
    let protocol = match dial.manner {
        Manner::Mptcp => Protocol::from(libc::IPPROTO_MPTCP),
        _ => Protocol::TCP,
    };
    match dial.manner {
        Manner::Ring(by) if by.direct => {
            ring::direct(domain, &address(dial.destination, dial.mapped), by)
        }
        _ => visit::make(|| Socket::new(domain, Type::STREAM, Some(protocol))),
    }
}

fn prepare(socket: &Socket, dial: &Dial) -> io::Result<()> {
    if let Manner::With(privilege) = dial.manner {
        tricks::privilege(socket, privilege)?;
    }
    let patience = Duration::from_millis(dial.patience_ms);
    socket.set_write_timeout(Some(patience))?;
    socket.set_read_timeout(Some(patience))?;
    if let Some(device) = &dial.device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    if let Some(segment) = dial.segment {
        routing_header(socket, segment)?;
    }
    if dial.beside.is_some() {
        socket.set_reuse_address(true)?;
    }
    if dial.beside.is_some() || dial.resets {
        // No TIME_WAIT: the port is used again.
        socket.set_linger(Some(Duration::ZERO))?;
    }
    if let Some(source) = dial.source {
        socket.bind(&address(source, dial.mapped))?;
    }
    Ok(())
}

/// Sets a segment routing header (RFC 8754) of one segment before the destination, or a loose source route (RFC 791)
/// by one hop.
fn routing_header(socket: &Socket, segment: IpAddr) -> io::Result<()> {
    const IPV6_RTHDR: i32 = 57;
    const LOOSE_ROUTE: [u8; 3] = [131, 7, 4];
    let segment = match segment {
        IpAddr::V4(hop) => {
            let option = [&LOOSE_ROUTE[..], &hop.octets(), &[0]].concat();
            return set_buffer(socket, (libc::IPPROTO_IP, libc::IP_OPTIONS), &option);
        }
        IpAddr::V6(segment) => segment,
    };
    // Next header, length, type, segments left, last entry, flags, tag; the kernel puts the destination in
    // the first entry.
    let mut header = vec![0, 4, 4, 1, 1, 0, 0, 0];
    header.extend([0; 16]);
    header.extend(segment.octets());
    set_buffer(socket, (libc::IPPROTO_IPV6, IPV6_RTHDR), &header)
}

fn set_buffer(socket: &Socket, (level, option): (i32, i32), value: &[u8]) -> io::Result<()> {
    // SAFETY: a buffer of the given length.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as u32,
        )
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn connect(socket: &Socket, dial: &Dial) -> io::Result<()> {
    if let Some(first) = dial.first {
        let first = socket.connect(&address(first, dial.mapped));
        if dial.dissolve {
            first?;
            dissolve(socket)?;
        } else if first.is_ok() {
            return Err(io::Error::other("the first connect was to fail"));
        }
    }
    let destination = address(dial.destination, dial.mapped);
    match dial.manner {
        Manner::Blocking | Manner::Mptcp | Manner::With(_) => socket.connect(&destination),
        Manner::NonBlocking => {
            socket.connect_timeout(&destination, Duration::from_millis(dial.patience_ms))
        }
        Manner::FastOpen => fast_open(socket, &destination),
        Manner::FastOpenDeferred => tricks::fast_open_deferred(socket, &destination),
        Manner::Ring(by) => ring::connect(socket, &destination, by),
    }
}

/// connect with AF_UNSPEC, which makes the socket what it was before it was connected.
fn dissolve(socket: &Socket) -> io::Result<()> {
    let unspecified = [0_u8; 16];
    // SAFETY: an address of the given length.
    let failed = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            unspecified.as_ptr().cast(),
            unspecified.len() as u32,
        )
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Connects, dissolves the connection and listens on the same socket.
pub fn reuse(to: SocketAddr) -> Result<Reused> {
    let listening = run_as(&APP, || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.connect(&to.into())?;
        dissolve(&socket)?;
        socket.listen(1)?;
        io::Result::Ok((socket.local_addr()?, names::originals(&socket)))
    })?;
    let (address, original) =
        listening.with_context(|| format!("reuse a socket that was connected to {to}"))?;
    Ok(Reused {
        address: address.as_socket().context("not an IP address")?,
        original,
    })
}

fn address(address: SocketAddr, mapped: bool) -> SockAddr {
    match address.ip() {
        IpAddr::V4(v4) if mapped => {
            SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()).into()
        }
        _ => address.into(),
    }
}

fn fast_open(socket: &Socket, destination: &SockAddr) -> io::Result<()> {
    let byte = [0_u8; 1];
    // SAFETY: buffer and address of the given lengths.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            byte.as_ptr().cast(),
            byte.len(),
            libc::MSG_FASTOPEN,
            destination.as_ptr().cast(),
            destination.len(),
        )
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The connection as the accepting end sees it.
fn greeting(socket: &Socket) -> io::Result<(u16, Names)> {
    let mut line = String::new();
    BufReader::with_capacity(4096, socket).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

/// Connections that are kept.
#[derive(Default)]
pub struct Held {
    sockets: Vec<Socket>,
}

impl Held {
    /// Keeps one.
    pub fn keep(&mut self, socket: Socket) {
        self.sockets.push(socket);
    }

    /// How both ends see them now.
    pub fn reread_names(&self) -> Vec<Result<Connected, i32>> {
        let reread = |mut socket: &Socket| -> io::Result<Connected> {
            socket.write_all(REREAD_NAMES)?;
            let (accepted_by, server) = greeting(socket)?;
            Ok(Connected {
                accepted_by,
                client: names::of(socket)?,
                server,
            })
        };
        self.sockets
            .iter()
            .map(|socket| reread(socket).map_err(|error| errno(&error)))
            .collect()
    }

    /// How many still carry data both ways.
    pub fn echo(&mut self) -> usize {
        self.sockets
            .iter_mut()
            .map(|socket| {
                let mut back = [0; 4];
                socket
                    .write_all(b"ping")
                    .and_then(|()| socket.read_exact(&mut back))?;
                io::Result::Ok(back == *b"ping")
            })
            .filter(|alive| matches!(alive, Ok(true)))
            .count()
    }
}
