//! Lists open TCP connections with sock_diag(7), each socket with the record that the kernel programs keep in it.
//!
//! A record is in the socket's own storage (`RECORD_BY_SOCK`). sock_diag returns it when the request names the map
//! by descriptor (Linux 5.7, `bpf_sk_storage_diag_put` in net/core/bpf_sk_storage.c).

use std::{
    io,
    net::SocketAddr,
    ops::ControlFlow,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED, NetlinkSerializable};
use netlink_packet_sock_diag::{
    SOCK_DIAG_BY_FAMILY, SockDiagMessage,
    constants::{IPPROTO_TCP, TCP_CLOSE_WAIT, TCP_ESTABLISHED, TCP_SYN_SENT},
    inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags, nlas::Nla},
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use sidetrack_common::{
    conn::{SockRecord, StoredRecord},
    names,
};

use super::{netlink, pins::Pins, sock_diag, sys};

/// Attributes of linux/inet_diag.h and linux/sock_diag.h.
const INET_DIAG_REQ_SK_BPF_STORAGES: u16 = 2;
const SK_DIAG_BPF_STORAGE_REQ_MAP_FD: u16 = 1;
const INET_DIAG_SK_BPF_STORAGES: u16 = 20;
const SK_DIAG_BPF_STORAGE: u16 = 1;
const SK_DIAG_BPF_STORAGE_MAP_VALUE: u16 = 3;

/// The pinned map of the sockets' records.
#[derive(Debug)]
pub struct Records(OwnedFd);

/// A socket of an open connection.
#[derive(Clone, Debug)]
pub struct OpenSocket {
    /// State, as in `TCP_ESTABLISHED`.
    pub state: u8,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
    /// The user it belongs to, in the host's numbering. `None` if no process has it open.
    pub uid: Option<u32>,
    /// `SO_COOKIE`.
    pub cookie: u64,
    /// What it has sent and received.
    pub traffic: Option<Traffic>,
    /// Whether it has connected (`true`) or was accepted, if that is known.
    pub has_connected: Option<bool>,
    /// What the kernel programs have stored in it.
    pub record: Option<SockRecord>,
}

/// What a socket has sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent, without retransmissions.
    pub sent: u64,
    /// Bytes received. The kernel counts the peer's FIN as one.
    pub received: u64,
    /// Since data was sent or received, or since the connection was made.
    pub idle: Option<Duration>,
}

impl Records {
    /// Opens the map from its pin.
    ///
    /// # Errors
    /// If it is missing, or its values have another size.
    pub fn open(pins: &Pins) -> Result<Self> {
        let path = pins.map(names::RECORD_BY_SOCK);
        let fd = sys::open_pin(&path).with_context(|| format!("open map {}", path.display()))?;
        let size = sys::map_info(fd.as_fd())?.value_size as usize;
        ensure!(
            size == size_of::<StoredRecord>(),
            "map {} was made by another build: run the `sidetrack` of the agent",
            path.display()
        );
        Ok(Self(fd))
    }

    /// Visits the sockets of a family (`AF_INET`, `AF_INET6`) that have an open connection, in the namespace of
    /// the calling thread, until `visit` breaks.
    ///
    /// # Errors
    /// If the kernel cannot list them, or has not by the given time.
    pub fn visit(
        &self,
        family: u8,
        until: Instant,
        mut visit: impl FnMut(OpenSocket) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let request = Request {
            sockets: InetRequest {
                family,
                protocol: IPPROTO_TCP,
                extensions: ExtensionFlags::INFO,
                states: StateFlags::all()
                    - StateFlags::LISTEN
                    - StateFlags::CLOSE
                    - StateFlags::TIME_WAIT,
                socket_id: SocketId::new_v4(),
            },
            map_fd: self.0.as_raw_fd(),
        };
        let socket = netlink::open(NETLINK_SOCK_DIAG)?;
        netlink::dump(&socket, request, until, |message| match message {
            SockDiagMessage::InetResponse(socket) => visit(OpenSocket::of(&socket)),
            _ => ControlFlow::Continue(()),
        })
    }
}

/// `inet_diag_req_v2` with an attribute that requests the values of a map.
#[derive(Debug)]
struct Request {
    sockets: InetRequest,
    map_fd: i32,
}

impl Request {
    fn attribute(&self) -> DefaultNla {
        let mut map = [0; 8];
        DefaultNla::new(
            SK_DIAG_BPF_STORAGE_REQ_MAP_FD,
            self.map_fd.to_ne_bytes().to_vec(),
        )
        .emit(&mut map);
        DefaultNla::new(INET_DIAG_REQ_SK_BPF_STORAGES | NLA_F_NESTED, map.to_vec())
    }
}

impl NetlinkSerializable for Request {
    fn message_type(&self) -> u16 {
        SOCK_DIAG_BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        self.sockets.buffer_len() + self.attribute().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let (sockets, attribute) = buffer.split_at_mut(self.sockets.buffer_len());
        self.sockets.emit(sockets);
        self.attribute().emit(attribute);
    }
}

impl OpenSocket {
    fn of(socket: &InetResponse) -> Self {
        let header = &socket.header;
        let id = &header.socket_id;
        let mut traffic = None;
        let mut has_connected = None;
        let storages = sock_diag::attribute(socket, INET_DIAG_SK_BPF_STORAGES);
        for attribute in &socket.nlas {
            if let Nla::TcpInfo(info) = attribute {
                traffic = Traffic::of(info, header.state);
                has_connected = has_sent_syn(info, header.state, header.send_queue);
            }
        }
        Self {
            state: header.state,
            local: SocketAddr::new(id.source_address, id.source_port),
            remote: SocketAddr::new(id.destination_address, id.destination_port),
            // Without an inode no file refers to it, and the kernel reports user 0.
            uid: (header.inode != 0).then_some(header.uid),
            cookie: sock_diag::cookie(socket),
            traffic,
            has_connected,
            record: storages.and_then(|storages| record_in(&storages)),
        }
    }
}

/// The record in the attribute with the socket's values.
fn record_in(storages: &[u8]) -> Option<SockRecord> {
    let value = sock_diag::nested(
        sock_diag::nested(storages, SK_DIAG_BPF_STORAGE)?,
        SK_DIAG_BPF_STORAGE_MAP_VALUE,
    )?;
    let stored: StoredRecord = bytemuck::try_pod_read_unaligned(value).ok()?;
    Some(stored.record)
}

fn u32_at(info: &[u8], at: usize) -> Option<u32> {
    let bytes = info.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn u64_at(info: &[u8], at: usize) -> Option<u64> {
    let bytes = info.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// Whether a socket has sent a SYN: the kernel counts it as a byte that was acknowledged (`tcp_snd_una_update`), but not as
/// one that was sent. The SYN of a socket that was accepted is counted as neither. Of a socket that has sent a FIN, which
/// counts in the same way, it is not known.
fn has_sent_syn(info: &[u8], state: u8, send_queue: u32) -> Option<bool> {
    if !matches!(state, TCP_ESTABLISHED | TCP_CLOSE_WAIT) {
        return None;
    }
    let (acked, not_sent) = (u64_at(info, 120)?, u32_at(info, 144)?);
    let (sent, sent_again) = (u64_at(info, 200)?, u64_at(info, 208)?);
    let in_flight = send_queue.checked_sub(not_sent)?;
    let data_acked = sent
        .checked_sub(sent_again)?
        .checked_sub(in_flight.into())?;
    match acked.checked_sub(data_acked)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

impl Traffic {
    /// From `struct tcp_info` of linux/tcp.h.
    fn of(info: &[u8], state: u8) -> Option<Self> {
        let (last_sent, last_received) = (u32_at(info, 44)?, u32_at(info, 52)?);
        let (received, sent) = (u64_at(info, 128)?, u64_at(info, 200)?);
        let sent_again = u64_at(info, 208)?;
        Some(Self {
            sent: sent.saturating_sub(sent_again),
            received,
            // Both times begin when the connection is made.
            idle: (state != TCP_SYN_SENT)
                .then(|| Duration::from_millis(last_sent.min(last_received).into())),
        })
    }
}

#[cfg(test)]
mod tests;
