//! Unix sockets of type SOCK_SEQPACKET, which neither std nor tokio makes: a message is one packet, and a descriptor
//! travels with it.

use std::{
    io::{self, IoSlice},
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        unix::net,
    },
    path::Path,
};

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect,
    listen, recv, sendmsg, socket,
};
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
};

/// The largest message that ztunnel reads (`src/inpod/protocol.rs`).
pub const MAX_SENT: usize = 1024;
/// The largest that is read here. ztunnel's errors are the longest.
const MAX_RECEIVED: usize = 16 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

fn new_socket() -> io::Result<std::os::fd::OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    Ok(socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        flags,
        None,
    )?)
}

/// Binds a listener.
pub fn listener(path: &Path) -> io::Result<UnixListener> {
    let socket = new_socket()?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    UnixListener::from_std(net::UnixListener::from(socket))
}

/// Connects to a listener. One whose backlog is full counts as an error.
pub fn connected(path: &Path) -> io::Result<net::UnixStream> {
    let socket = new_socket()?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(net::UnixStream::from(socket))
}

/// Sends a packet, with a descriptor if one is given. Cancel safe: a packet is sent whole or not at all.
pub async fn send(
    stream: &UnixStream,
    packet: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    if packet.len() > MAX_SENT {
        return Err(io::Error::other(format!(
            "a message of {} bytes, of which ztunnel reads {MAX_SENT}",
            packet.len()
        )));
    }
    let raw = descriptor.map(|descriptor| [descriptor.as_raw_fd()]);
    let rights = raw.as_ref().map(|raw| ControlMessage::ScmRights(raw));
    let packet = [IoSlice::new(packet)];
    stream
        .async_io(Interest::WRITABLE, || {
            let flags = MsgFlags::MSG_NOSIGNAL;
            sendmsg::<()>(stream.as_raw_fd(), &packet, rights.as_slice(), flags, None)?;
            Ok(())
        })
        .await
}

/// Receives a packet; `None` at the end. Cancel safe.
pub async fn receive(stream: &UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut packet = vec![0; MAX_RECEIVED];
    let length = stream
        .async_io(Interest::READABLE, || {
            Ok(recv(
                stream.as_raw_fd(),
                &mut packet,
                MsgFlags::MSG_DONTWAIT,
            )?)
        })
        .await?;
    packet.truncate(length);
    Ok((length > 0).then_some(packet))
}
