//! Connections to a sidecar that hangs: begun, never made, and gone all at once when this process is
//! killed.

use std::{io, net::SocketAddr};

use anyhow::Result;
use socket2::{Domain, Protocol, Socket, Type};

use super::{orders, say};
use crate::wire::Flooded;

/// Begins them, says how many hang, and holds them until stdin ends.
pub fn run(to: &[SocketAddr], each: usize) -> Result<()> {
    let mut sockets = Vec::with_capacity(to.len() * each);
    let mut flooded = Flooded::default();
    for number in 0..to.len() * each {
        let to = to[number % to.len()];
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&to.into()) {
            Ok(()) => flooded.pending += 1,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => flooded.pending += 1,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => flooded.refused += 1,
            Err(_) => flooded.failed += 1,
        }
        sockets.push(socket);
    }
    say(&flooded)?;
    orders().for_each(drop);
    Ok(())
}
