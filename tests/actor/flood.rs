//! Connections that get nowhere.

use std::{
    io,
    net::{SocketAddr, SocketAddrV4},
};

use anyhow::{Context as _, Result};
use lab::protocol::{APP, Flooded, PROXY};
use nix::sys::resource::{Resource, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{dial::Held, identity::run_as, tricks};

/// Begins them; they are kept, whatever becomes of them.
pub fn begin(to: SocketAddr, count: usize, deferred: bool, held: &mut Held) -> Result<Flooded> {
    let files = count as u64 + 1024;
    setrlimit(Resource::RLIMIT_NOFILE, files, files).context("raise the limit of files")?;
    let mut flooded = Flooded::default();
    let mut sockets = Vec::with_capacity(count);
    run_as(&APP, || -> io::Result<()> {
        for _ in 0..count {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            if deferred {
                tricks::defer(&socket)?;
            }
            match socket.connect(&to.into()) {
                Ok(()) => flooded.pending += 1,
                Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                    flooded.pending += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    flooded.refused += 1;
                }
                Err(_) => flooded.failed += 1,
            }
            sockets.push(socket);
        }
        for socket in sockets.iter().filter(|_| deferred) {
            match socket.send(&[0]) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    })??;
    for socket in sockets {
        held.keep(socket);
    }
    Ok(flooded)
}

/// Begins a connection from an address and port that other sockets may have as well.
pub fn begin_from(from: SocketAddr, to: SocketAddr) -> Result<Socket> {
    let begun = run_as(&APP, || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&from.into())?;
        socket.set_nonblocking(true)?;
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => io::Result::Ok(socket),
        }
    })?;
    begun.with_context(|| format!("connect from {from} to {to}"))
}

/// A listener with the shortest backlog there is. Its connections are not accepted.
pub fn hang(address: SocketAddr) -> Result<Socket> {
    let bound = run_as(&PROXY, || {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(0)?;
        io::Result::Ok(socket)
    })?;
    bound.with_context(|| format!("listen on {address}"))
}

/// Sends bare packets as no socket of this pod would.
pub fn packets(from: SocketAddrV4, to: SocketAddrV4, count: u16, flags: u8) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new((*from.ip()).into(), 0).into())?;
    for number in 0..count {
        let from = SocketAddrV4::new(*from.ip(), from.port() + number);
        socket
            .send_to(&header(from, to, flags), &SocketAddr::from(to).into())
            .with_context(|| format!("send a packet from {from}"))?;
    }
    Ok(())
}

/// A TCP header without options.
fn header(from: SocketAddrV4, to: SocketAddrV4, flags: u8) -> [u8; 20] {
    const WORDS: u8 = 5;
    let mut header = [0; 20];
    header[0..2].copy_from_slice(&from.port().to_be_bytes());
    header[2..4].copy_from_slice(&to.port().to_be_bytes());
    header[4..8].copy_from_slice(&1000_u32.to_be_bytes());
    header[12] = WORDS << 4;
    header[13] = flags;
    header[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    let sum = checksum(from, to, &header);
    header[16..18].copy_from_slice(&sum.to_be_bytes());
    header
}

/// The sum over header and pseudo header.
fn checksum(from: SocketAddrV4, to: SocketAddrV4, header: &[u8; 20]) -> u16 {
    let pseudo = [
        &from.ip().octets()[..],
        &to.ip().octets(),
        &[0, libc::IPPROTO_TCP as u8],
        &(header.len() as u16).to_be_bytes(),
        header,
    ]
    .concat();
    let sum: u32 = pseudo
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded + (folded >> 16)) as u16)
}
