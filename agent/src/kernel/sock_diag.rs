//! Lists TCP sockets with sock_diag(7). `/proc/net/tcp` has the same data, but reading it walks the table
//! of connections of the whole node, whatever the namespace.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::IPPROTO_TCP,
    inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};

/// Listening sockets of a family (`AF_INET`, `AF_INET6`), in the namespace of the calling thread.
pub fn listeners(family: u8) -> io::Result<Vec<InetResponse>> {
    sockets(family, StateFlags::LISTEN)
}

/// Sockets that have a peer, in the namespace of the calling thread.
pub fn connections(family: u8) -> io::Result<Vec<InetResponse>> {
    sockets(family, StateFlags::all() - StateFlags::LISTEN)
}

/// A socket's cookie (`SO_COOKIE`). sock_diag returns it as two 32-bit numbers, the lower half first.
pub fn cookie(socket: &InetResponse) -> u64 {
    let [a, b, c, d, e, f, g, h] = socket.header.socket_id.cookie;
    let half = |bytes| u64::from(u32::from_ne_bytes(bytes));
    half([a, b, c, d]) | half([e, f, g, h]) << 32
}

fn sockets(family: u8, states: StateFlags) -> io::Result<Vec<InetResponse>> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states,
        socket_id: SocketId::new_v4(),
    };
    let request = SockDiagMessage::InetRequest(request);
    let mut request = NetlinkMessage::new(header, request.into());
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut found = Vec::new();
    loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            let message =
                NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(io::Error::other)?;
            // Messages are padded to four bytes.
            let length = (message.header.length as usize).next_multiple_of(4);
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket)) => {
                    found.push(*socket);
                }
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            rest = rest.get(length.max(1)..).unwrap_or_default();
        }
    }
}
