//! Lists TCP sockets, and those of UDP, with sock_diag(7). `/proc/net/tcp` has the same data, but reading it walks the table
//! of connections of the whole node, whatever the namespace.

use std::{io, ops::ControlFlow, time::Instant};

use netlink_packet_core::{NLA_TYPE_MASK, Nla as _, NlasIterator};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP},
    inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags, nlas::Nla},
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::netlink;

/// Which sockets to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// Those that listen.
    Listening,
    /// Those that have a peer.
    Connected,
    /// Those that have a peer, and are not closed as far as their own end is concerned.
    Open,
    /// Those of UDP that have a peer.
    Sending,
    /// Those whose SYN to this port has had no answer yet.
    Connecting(u16),
    /// Those of UDP that are bound to this port and have no peer.
    Receiving(u16),
}

/// Visits the sockets in the namespace of the calling thread, IPv4 first, until `visit` breaks.
///
/// # Errors
/// If the kernel cannot list them, or has not by the given time.
pub fn visit(
    sockets: Sockets,
    until: Instant,
    mut visit: impl FnMut(InetResponse) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut next = ControlFlow::Continue(());
    for family in [AF_INET, AF_INET6] {
        if next.is_continue() {
            visit_family(family, sockets, until, |socket| {
                next = visit(socket);
                next
            })?;
        }
    }
    Ok(())
}

fn visit_family(
    family: u8,
    sockets: Sockets,
    until: Instant,
    mut visit: impl FnMut(InetResponse) -> ControlFlow<()>,
) -> io::Result<()> {
    let states = match sockets {
        Sockets::Listening => StateFlags::LISTEN,
        Sockets::Connected => StateFlags::all() - StateFlags::LISTEN,
        Sockets::Open => {
            StateFlags::all() - StateFlags::LISTEN - StateFlags::TIME_WAIT - StateFlags::CLOSE
        }
        Sockets::Sending => StateFlags::ESTABLISHED,
        Sockets::Connecting(_) => StateFlags::SYN_SENT,
        Sockets::Receiving(_) => StateFlags::CLOSE,
    };
    // With it comes the upper layer protocol, by which MPTCP shows.
    let extensions = match sockets {
        Sockets::Listening => ExtensionFlags::INFO,
        _ => ExtensionFlags::empty(),
    };
    let mut socket_id = SocketId::new_v4();
    let mut protocol = IPPROTO_TCP;
    match sockets {
        Sockets::Connecting(port) => socket_id.destination_port = port,
        Sockets::Sending => protocol = IPPROTO_UDP,
        Sockets::Receiving(port) => {
            socket_id.source_port = port;
            protocol = IPPROTO_UDP;
        }
        Sockets::Listening | Sockets::Connected | Sockets::Open => {}
    }
    let request = SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol,
        extensions,
        states,
        socket_id,
    });
    let socket = netlink::open(NETLINK_SOCK_DIAG)?;
    netlink::dump(&socket, request, until, |message| match message {
        SockDiagMessage::InetResponse(socket) => visit(*socket),
        _ => ControlFlow::Continue(()),
    })
}

/// A socket's cookie (`SO_COOKIE`). sock_diag returns it as two 32-bit numbers, the lower half first.
pub fn cookie(socket: &InetResponse) -> u64 {
    let [a, b, c, d, e, f, g, h] = socket.header.socket_id.cookie;
    let half = |bytes| u64::from(u32::from_ne_bytes(bytes));
    half([a, b, c, d]) | half([e, f, g, h]) << 32
}

/// The value of the attribute of a kind that the library does not know, as the kernel has written it.
pub fn attribute(socket: &InetResponse, kind: u16) -> Option<Vec<u8>> {
    socket.nlas.iter().find_map(|attribute| match attribute {
        Nla::Other(other) if other.kind() & NLA_TYPE_MASK == kind => {
            let mut value = vec![0; other.value_len()];
            other.emit_value(&mut value);
            Some(value)
        }
        _ => None,
    })
}

/// The value of the first attribute of a kind within another one's.
pub fn nested(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let found = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|it| it.kind() == kind)?;
    found.into_inner().get(4..4 + found.value_length())
}
