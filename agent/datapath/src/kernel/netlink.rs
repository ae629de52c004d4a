//! Requests over netlink(7), in the namespace of the calling thread.
//!
//! A pod can have millions of sockets, routes and addresses. Answers are therefore visited one by one,
//! with a deadline; closing the socket ends the kernel's work for the rest.

use std::{io, ops::ControlFlow, time::Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// Most bytes of an answer. From the size of the buffer the kernel concludes how much it may put into one, up to 32 KiB: a
/// route with many hops fits into no smaller one.
const MAX_DATAGRAM: usize = 64 << 10;

/// Opens a socket of a protocol (`NETLINK_ROUTE`, `NETLINK_SOCK_DIAG`).
pub fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Visits everything that answers a dump, until `visit` breaks. After that the socket is of no use.
///
/// # Errors
/// If the kernel refuses, or has not answered by the given time.
pub fn dump<Q, M>(
    socket: &Socket,
    request: Q,
    until: Instant,
    mut visit: impl FnMut(M) -> ControlFlow<()>,
) -> io::Result<()>
where
    Q: NetlinkSerializable,
    M: NetlinkDeserializable,
{
    send(socket, request, NLM_F_REQUEST | NLM_F_DUMP)?;
    while Instant::now() < until {
        let mut next = ControlFlow::Continue(());
        receive(socket, |payload| {
            next = match payload {
                NetlinkPayload::InnerMessage(message) => visit(message),
                // The kernel's errno, if it has listed only a part, or nothing.
                NetlinkPayload::Done(done) if done.code < 0 => {
                    return Err(io::Error::from_raw_os_error(-done.code));
                }
                NetlinkPayload::Done(_) => ControlFlow::Break(()),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => ControlFlow::Continue(()),
            };
            Ok(next)
        })?;
        if next.is_break() {
            return Ok(());
        }
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        "the kernel takes too long to list what the namespace has",
    ))
}

/// Asks for one thing.
///
/// # Errors
/// If the kernel refuses, or does not have it.
pub fn get<M>(request: M) -> io::Result<M>
where
    M: NetlinkSerializable + NetlinkDeserializable,
{
    let socket = open(netlink_sys::protocols::NETLINK_ROUTE)?;
    send(&socket, request, NLM_F_REQUEST)?;
    let mut answer = None;
    receive(&socket, |payload: NetlinkPayload<M>| match payload {
        NetlinkPayload::Error(error) => Err(error.to_io()),
        NetlinkPayload::InnerMessage(message) => {
            answer = Some(message);
            Ok(ControlFlow::Break(()))
        }
        _ => Ok(ControlFlow::Continue(())),
    })?;
    answer.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sends a request that changes something, and waits for the kernel's acknowledgment.
pub fn change<M>(message: M, flags: u16) -> io::Result<()>
where
    M: NetlinkSerializable + NetlinkDeserializable,
{
    let socket = open(netlink_sys::protocols::NETLINK_ROUTE)?;
    send(&socket, message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
    receive(&socket, |payload: NetlinkPayload<M>| match payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(ControlFlow::Break(())),
    })
}

/// Takes these errors for success.
pub fn ignore_errnos(errnos: &[i32], result: io::Result<()>) -> io::Result<()> {
    let is_fine = |error: &io::Error| error.raw_os_error().is_some_and(|it| errnos.contains(&it));
    match result {
        Err(error) if is_fine(&error) => Ok(()),
        other => other,
    }
}

fn send<M: NetlinkSerializable>(socket: &Socket, message: M, flags: u16) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// Waits for a datagram and visits its messages, until `visit` breaks.
fn receive<M: NetlinkDeserializable>(
    socket: &Socket,
    visit: impl FnMut(NetlinkPayload<M>) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let mut answer = Vec::with_capacity(MAX_DATAGRAM);
    let bytes = socket.recv(&mut answer, libc::MSG_TRUNC)?;
    if bytes > MAX_DATAGRAM {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    messages(&answer, visit)
}

/// Visits the messages of one datagram, until `visit` breaks.
///
/// # Errors
/// Those of `visit`, and if a message cannot be read.
pub fn messages<M: NetlinkDeserializable>(
    datagram: &[u8],
    mut visit: impl FnMut(NetlinkPayload<M>) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
        // Messages are padded to four bytes.
        let length = (message.header.length as usize).next_multiple_of(4);
        if visit(message.payload)?.is_break() {
            return Ok(());
        }
        rest = rest.get(length.max(1)..).unwrap_or_default();
    }
    Ok(())
}

/// Continues a listing if there is to be more of it.
pub fn continue_while(more: bool) -> ControlFlow<()> {
    if more {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}
