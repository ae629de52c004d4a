//! How a socket sees itself.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::AsRawFd,
};

use lab::protocol::Names;
use socket2::{Domain, Socket};

const SO_ORIGINAL_DST: i32 = 80;

/// Everything a socket can report about its two ends.
pub fn of(socket: &Socket) -> io::Result<Names> {
    let local = socket.local_addr()?.as_socket();
    let peer = socket.peer_addr()?.as_socket();
    let missing = || io::Error::other("not an IP socket");
    Ok(Names {
        local: local.ok_or_else(missing)?,
        peer: peer.ok_or_else(missing)?,
        original_v4: original(socket, libc::SOL_IP),
        original_v6: original(socket, libc::SOL_IPV6),
    })
}

/// SO_ORIGINAL_DST at both levels.
pub fn originals(socket: &Socket) -> [Result<SocketAddr, i32>; 2] {
    [libc::SOL_IP, libc::SOL_IPV6].map(|level| original(socket, level))
}

/// IP_TRANSPARENT, for which CAP_NET_ADMIN or CAP_NET_RAW is needed.
pub fn set_transparent(socket: &Socket, domain: Domain) -> io::Result<()> {
    if domain == Domain::IPV6 {
        socket.set_ip_transparent_v6(true)
    } else {
        socket.set_ip_transparent_v4(true)
    }
}

/// SO_ORIGINAL_DST, or errno.
fn original(socket: &Socket, level: i32) -> Result<SocketAddr, i32> {
    let mut buffer = [0_u8; 28];
    let want = if level == libc::SOL_IP { 16 } else { 28 };
    let mut len = want;
    // SAFETY: the buffer is at least as long as said.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            SO_ORIGINAL_DST,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or_default());
    }
    if len != want {
        return Err(libc::EMSGSIZE);
    }
    let port = u16::from_be_bytes([buffer[2], buffer[3]]);
    let family = u16::from_ne_bytes([buffer[0], buffer[1]]);
    let ip = match i32::from(family) {
        libc::AF_INET => IpAddr::from([buffer[4], buffer[5], buffer[6], buffer[7]]),
        libc::AF_INET6 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&buffer[8..24]);
            IpAddr::from(Ipv6Addr::from(octets))
        }
        _ => return Err(libc::EAFNOSUPPORT),
    };
    Ok(SocketAddr::new(ip, port))
}
