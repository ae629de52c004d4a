//! A pod's open TCP connections, by the names that they have without the redirect.
//!
//! A row says only what a socket's addresses, its record and the kernel's maps prove. Everything else is `unknown`.

mod read;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use netlink_packet_sock_diag::constants::{
    TCP_CLOSE_WAIT, TCP_CLOSING, TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_LAST_ACK,
    TCP_SYN_RECV, TCP_SYN_SENT,
};
use serde::Serialize;
use sidetrack_common::{
    addr::Addr,
    conn::{Destination, Meaning, SockRecord},
    target::{Target, is_dedicated, is_shared},
};

pub use self::read::{Listing, MAX_ROWS, list};
use sidetrack_datapath::kernel::sock_records::OpenSocket;

/// Which way a connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// By a process of the pod.
    Outbound,
    /// To a listener of the pod.
    Inbound,
    /// Neither is certain.
    Unknown,
}

/// The end of a connection that a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The one that connected.
    Connecting,
    /// The one that was accepted.
    Accepted,
    /// Neither is certain.
    Unknown,
}

/// Whose socket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// It took the connection at a capture port, or has the proxy's user.
    Sidecar,
    /// It has another user.
    Application,
    /// No process has the socket open, or the policy names no user.
    Unknown,
}

/// Whether the sidecar is between client and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// It is: the connection was redirected to it.
    Sidecar,
    /// It is not.
    Direct,
    /// Neither is certain.
    Unknown,
}

/// An open connection, as one of its sockets shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// Which way it was made.
    pub direction: Direction,
    /// The end that the socket is.
    pub end: End,
    /// Whose socket it is.
    pub owner: Owner,
    /// State, spelled as by ss(8).
    pub state: &'static str,
    /// The client's address without the redirect.
    pub client: Option<SocketAddr>,
    /// The dialed address.
    pub original_destination: Option<SocketAddr>,
    /// Whether the sidecar is in between.
    pub via: Via,
    /// The sidecar's port that has it.
    pub capture_port: Option<u16>,
    /// The socket's user, in the host's numbering.
    pub uid: Option<u32>,
    /// Bytes sent, without retransmissions.
    pub sent_bytes: Option<u64>,
    /// Bytes received.
    pub received_bytes: Option<u64>,
    /// Milliseconds since data was sent or received, or since the connection was made.
    pub idle_ms: Option<u64>,
    /// The socket's own address, as ss(8) shows it.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
    /// The socket's cookie.
    pub socket: u64,
}

/// What the kernel's maps have about a pod.
pub trait Tables {
    /// The destination that a target names.
    fn destination(&self, target: Target) -> Option<Destination>;
    /// Whether a user is the proxy's, if the policy names users.
    fn is_proxy(&self, uid: u32) -> Option<bool>;
    /// The port with the sidecar's listener for outbound connections.
    fn outbound_port(&self) -> Option<u16>;
    /// The port with its listener for inbound connections, if all of them go to one.
    fn inbound_port(&self) -> Option<u16>;
}

/// A pod's listening sockets: addresses and users by port.
pub type Listeners = HashMap<u16, Vec<(IpAddr, Option<u32>)>>;

/// What a socket's connection is.
struct What {
    direction: Direction,
    end: End,
    owner: Owner,
    client: Option<SocketAddr>,
    dialed: Option<SocketAddr>,
    via: Via,
    capture_port: Option<u16>,
}

/// Explains sockets. If `all` is false, a connection whose two ends are both in the pod is shown once, from the end
/// that connected.
pub fn explain(
    sockets: &[OpenSocket],
    listeners: &Listeners,
    tables: &impl Tables,
    all: bool,
) -> Vec<Connection> {
    let mut connecting = HashMap::new();
    let mut rows = Vec::with_capacity(sockets.len());
    for socket in sockets {
        let what = by_itself(socket, tables);
        if let Some(what) = what.as_ref().filter(|what| what.end == End::Connecting) {
            let seen = (what.client, what.dialed, what.via, what.capture_port);
            connecting.insert(ends(socket.local, socket.remote), seen);
        }
        rows.push((socket, what));
    }
    let mut shown = HashSet::new();
    let mut connections = Vec::new();
    for (socket, what) in rows {
        let other = connecting.get(&ends(socket.remote, socket.local));
        let is_connecting = what
            .as_ref()
            .is_some_and(|what| what.end == End::Connecting);
        if other.is_some() && !all && !is_connecting {
            continue;
        }
        if !shown.insert(socket.cookie) {
            // A socket may be listed again while the table changes.
            continue;
        }
        let what = match (what, other) {
            (Some(what), _) => what,
            (None, Some((client, dialed, Via::Sidecar, capture_port))) => What {
                direction: Direction::Outbound,
                end: End::Accepted,
                owner: Owner::Sidecar,
                client: *client,
                dialed: *dialed,
                via: Via::Sidecar,
                capture_port: *capture_port,
            },
            (None, other) => arrived(socket, other.is_some(), listeners, tables),
        };
        connections.push(row(socket, what));
    }
    connections.sort_by_key(|row| (row.direction, row.original_destination, row.client));
    connections
}

/// The key under which the other end is found: a socket of IPv6 may have IPv4 addresses.
fn ends(local: SocketAddr, remote: SocketAddr) -> (SocketAddr, SocketAddr) {
    (canonical(local), canonical(remote))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn address(addr: Addr, port: u16) -> SocketAddr {
    SocketAddr::new(addr.into(), port)
}

/// A client's address without the redirect: `source` if that is known.
fn client(own: SocketAddr, source: Addr) -> SocketAddr {
    if source.is_unspecified() {
        canonical(own)
    } else {
        address(source, own.port())
    }
}

fn owner(uid: Option<u32>, tables: &impl Tables) -> Owner {
    match uid.and_then(|uid| tables.is_proxy(uid)) {
        Some(true) => Owner::Sidecar,
        Some(false) => Owner::Application,
        None => Owner::Unknown,
    }
}

/// What a socket's addresses and record prove, in the order in which the kernel programs read them.
fn by_itself(socket: &OpenSocket, tables: &impl Tables) -> Option<What> {
    let (local, remote) = (socket.local, socket.remote);
    if let Some(what) = of_target(socket, tables) {
        return Some(what);
    }
    if let Some((record, meaning)) = record(socket) {
        match meaning {
            Meaning::Sidecar => return Some(accepted(record, remote)),
            Meaning::Application => {
                return Some(What {
                    direction: Direction::Outbound,
                    end: End::Connecting,
                    owner: owner(socket.uid, tables),
                    client: Some(client(local, record.source)),
                    dialed: Some(address(record.addr, record.port)),
                    via: Via::Sidecar,
                    capture_port: Some(record.capture_port),
                });
            }
            Meaning::Direct | Meaning::Translated => {
                return Some(What {
                    direction: Direction::Outbound,
                    end: End::Connecting,
                    owner: owner(socket.uid, tables),
                    client: Some(canonical(local)),
                    dialed: Some(address(record.addr, record.port)),
                    via: Via::Direct,
                    capture_port: None,
                });
            }
            Meaning::Stale | Meaning::Assigned => {}
        }
    }
    // The proxy's own connections have no record, and no rule redirects them but those to its own pod, which have a target.
    let is_direct =
        owner(socket.uid, tables) == Owner::Sidecar && socket.has_connected == Some(true);
    if is_direct && socket.record.is_none() {
        return Some(What {
            direction: Direction::Outbound,
            end: End::Connecting,
            owner: Owner::Sidecar,
            client: Some(canonical(local)),
            dialed: Some(canonical(remote)),
            via: Via::Direct,
            capture_port: None,
        });
    }
    (socket.state == TCP_SYN_SENT).then(|| What {
        direction: Direction::Outbound,
        end: End::Connecting,
        owner: owner(socket.uid, tables),
        client: Some(canonical(local)),
        dialed: None,
        via: Via::Unknown,
        capture_port: None,
    })
}

/// A socket's record, and what it says about the socket's connection.
fn record(socket: &OpenSocket) -> Option<(&SockRecord, Meaning)> {
    let record = socket.record.as_ref()?;
    let meaning = record.meaning(socket.local.port(), socket.remote.port());
    Some((record, meaning))
}

fn accepted(record: &SockRecord, remote: SocketAddr) -> What {
    What {
        direction: Direction::Outbound,
        end: End::Accepted,
        owner: Owner::Sidecar,
        client: Some(client(remote, record.source)),
        dialed: Some(address(record.addr, record.port)),
        via: Via::Sidecar,
        capture_port: Some(record.capture_port),
    }
}

/// What it is if one of its addresses is a target that names its destination.
fn of_target(socket: &OpenSocket, tables: &impl Tables) -> Option<What> {
    let (end, target, other) = [
        (End::Connecting, socket.remote, socket.local),
        (End::Accepted, socket.local, socket.remote),
    ]
    .into_iter()
    .find(|(_, target, _)| is_dedicated(target.ip().into()))?;
    let row = tables.destination(Target {
        addr: target.ip().into(),
        port: target.port(),
    });
    // Without a row nothing was redirected there, unless the row was removed: applications may use these addresses.
    let is_direct = matches!(
        record(socket),
        Some((_, Meaning::Direct | Meaning::Translated))
    );
    if row.is_none() && (is_direct || tables.outbound_port() != Some(target.port())) {
        return None;
    }
    let client = match row {
        // A bound socket has its own address.
        _ if !other.ip().to_canonical().is_loopback() => Some(canonical(other)),
        Some(row) => Some(client(other, row.source)),
        None => None,
    };
    Some(What {
        direction: Direction::Outbound,
        end,
        owner: match end {
            End::Accepted => Owner::Sidecar,
            _ => owner(socket.uid, tables),
        },
        client,
        dialed: row.map(|row| address(row.dialed, row.dialed_port)),
        via: Via::Sidecar,
        capture_port: Some(target.port()),
    })
}

/// What a socket without a record is. It was accepted if a socket of the pod listens on its port: connect never
/// picks a port that a socket was bound to (`__inet_hash_connect` in net/ipv4/inet_hashtables.c). Otherwise it may
/// also have connected before the pod was enrolled.
fn arrived(
    socket: &OpenSocket,
    other_end_connected: bool,
    listeners: &Listeners,
    tables: &impl Tables,
) -> What {
    let (local, remote) = (canonical(socket.local), canonical(socket.remote));
    let owner = owner(socket.uid, tables);
    let on_port = listeners.get(&local.port()).map_or(&[][..], Vec::as_slice);
    let is_accepted = other_end_connected || !on_port.is_empty() || socket.state == TCP_SYN_RECV;
    // Its target names no destination, and the other end is not known any more.
    let was_redirected = is_shared(local.ip().into());
    if !is_accepted || was_redirected {
        return What {
            direction: if was_redirected {
                Direction::Outbound
            } else {
                Direction::Unknown
            },
            end: if was_redirected {
                End::Accepted
            } else {
                End::Unknown
            },
            owner,
            client: None,
            dialed: None,
            via: Via::Unknown,
            capture_port: None,
        };
    }
    // A listener of the proxy's own on that port may have accepted it as well.
    let is_own = |(ip, uid): &(IpAddr, Option<u32>)| {
        (ip.is_unspecified() || ip.to_canonical() == local.ip())
            && uid.and_then(|uid| tables.is_proxy(uid)) != Some(false)
    };
    let via = match owner {
        Owner::Application => Via::Direct,
        Owner::Sidecar if !on_port.is_empty() && !on_port.iter().any(is_own) => Via::Sidecar,
        _ => Via::Unknown,
    };
    What {
        direction: Direction::Inbound,
        end: End::Accepted,
        owner,
        client: Some(remote),
        dialed: Some(local),
        via,
        capture_port: tables.inbound_port().filter(|_| via == Via::Sidecar),
    }
}

fn row(socket: &OpenSocket, what: What) -> Connection {
    let traffic = socket.traffic;
    Connection {
        direction: what.direction,
        end: what.end,
        owner: what.owner,
        state: state(socket.state),
        client: what.client,
        original_destination: what.dialed,
        via: what.via,
        capture_port: what.capture_port,
        uid: socket.uid,
        sent_bytes: traffic.map(|traffic| traffic.sent),
        received_bytes: traffic.map(|traffic| traffic.received),
        idle_ms: traffic
            .and_then(|traffic| traffic.idle)
            .map(|idle| idle.as_millis() as u64),
        local: socket.local,
        remote: socket.remote,
        socket: socket.cookie,
    }
}

fn state(state: u8) -> &'static str {
    match state {
        TCP_ESTABLISHED => "ESTAB",
        TCP_SYN_SENT => "SYN-SENT",
        TCP_SYN_RECV => "SYN-RECV",
        TCP_FIN_WAIT1 => "FIN-WAIT-1",
        TCP_FIN_WAIT2 => "FIN-WAIT-2",
        TCP_CLOSE_WAIT => "CLOSE-WAIT",
        TCP_LAST_ACK => "LAST-ACK",
        TCP_CLOSING => "CLOSING",
        _ => "unknown",
    }
}
