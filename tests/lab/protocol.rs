//! What is said to an actor (a process in a pod) and what it answers: JSON, one line each.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{
    tricks::{Privilege, Ring, Trick},
    udp::{AnswerUdp, SendUdp, UdpAnswer},
};

/// An identity to take on for creating or connecting a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Effective uid, and filesystem uid unless that is given.
    pub uid: u32,
    /// Effective gid, and filesystem gid unless that is given.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Real uid, if another: as in a setuid program.
    pub real_uid: Option<u32>,
    /// Filesystem uid, if another: as after setfsuid(2). Unless the effective uid is 0 it has to
    /// be the effective or the real one.
    pub fs_uid: Option<u32>,
    /// Filesystem gid, if another: as after setfsgid(2).
    pub fs_gid: Option<u32>,
}

impl Identity {
    /// The same number for uid and gid.
    #[must_use]
    pub const fn of(id: u32) -> Self {
        Self::with_gid(id, id)
    }

    /// uid and gid.
    #[must_use]
    pub const fn with_gid(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: Vec::new(),
            real_uid: None,
            fs_uid: None,
            fs_gid: None,
        }
    }
}

/// The application.
pub const APP: Identity = Identity::of(1000);
/// The sidecar.
pub const PROXY: Identity = Identity::of(1337);
/// Root.
pub const ROOT: Identity = Identity::of(0);

/// How a connection is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// connect(2).
    #[default]
    Blocking,
    /// connect(2) on a non-blocking socket, then poll.
    NonBlocking,
    /// sendto(2) with MSG_FASTOPEN.
    FastOpen,
    /// connect(2) with TCP_FASTOPEN_CONNECT, which sends the SYN with the first write(2).
    FastOpenDeferred,
    /// IORING_OP_CONNECT.
    Ring(Ring),
    /// connect(2) on a socket with an option that not everyone may set.
    With(Privilege),
    /// connect(2) on a socket of protocol MPTCP.
    Mptcp,
}

/// One connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dial {
    /// Who creates the socket.
    pub creator: Identity,
    /// Who connects it, if another.
    pub connector: Option<Identity>,
    /// What it is bound to; port 0 leaves the port open.
    pub source: Option<SocketAddr>,
    /// Where it goes.
    pub destination: SocketAddr,
    /// Tried first on the same socket; expected to fail.
    pub first: Option<SocketAddr>,
    /// Whether the first is expected to connect, and is then dissolved by connect with AF_UNSPEC.
    pub dissolve: bool,
    /// Where another socket, bound to the same source, is connected meanwhile.
    pub beside: Option<SocketAddr>,
    /// SO_BINDTODEVICE.
    pub device: Option<String>,
    /// SO_MARK, 0 for none.
    pub mark: u32,
    /// IP_TRANSPARENT: the source need not be an address of the host.
    pub transparent: bool,
    /// The first hop of an IPv6 routing header (IPV6_RTHDR, type 4) or of an IPv4 source route (IP_OPTIONS).
    pub segment: Option<std::net::IpAddr>,
    /// How.
    pub manner: Manner,
    /// Whether an IPv4 destination is dialed on an IPv6 socket.
    pub mapped: bool,
    /// After the socket was created, a file is made here (`.created`) and waited for (`.go`).
    pub pause: Option<std::path::PathBuf>,
    /// Longest wait for an answer, in milliseconds.
    pub patience_ms: u64,
    /// Whether it ends with a reset, which leaves nothing in TIME_WAIT.
    pub resets: bool,
}

impl Dial {
    /// A plain connection by one identity.
    #[must_use]
    pub fn new(creator: &Identity, destination: SocketAddr) -> Self {
        Self {
            creator: creator.clone(),
            connector: None,
            source: None,
            destination,
            first: None,
            dissolve: false,
            beside: None,
            device: None,
            mark: 0,
            transparent: false,
            segment: None,
            manner: Manner::Blocking,
            mapped: false,
            pause: None,
            // A packet that is lost while an interface comes up is sent again after 1 s, its repetition after 3.
            patience_ms: 5000,
            resets: false,
        }
    }
}

/// A listening socket group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listen {
    /// Where.
    pub address: SocketAddr,
    /// Who.
    pub owner: Identity,
    /// How many sockets have the port.
    pub sockets: usize,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
    /// IP_TRANSPARENT, which TPROXY needs.
    pub transparent: bool,
    /// A socket of protocol MPTCP, as Go makes them.
    pub mptcp: bool,
}

/// The flag of a packet that begins a connection.
pub const SYN: u8 = 2;
/// The flag of one that acknowledges.
pub const ACK: u8 = 16;

/// A command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Opens listeners; answers [`Response::Listening`].
    Listen(Listen),
    /// Closes the n-th socket of a listener group.
    Close {
        /// As answered.
        id: usize,
        /// Which socket.
        socket: usize,
    },
    /// Connects; answers [`Response::Dialed`].
    Dial(Box<Dial>),
    /// Connects one after the other; answers [`Response::AllDialed`].
    DialAll(Vec<Dial>),
    /// Connects, some at the same time; answers [`Response::AllDialed`].
    DialTogether(Vec<Dial>),
    /// Connects one after the other and keeps the connections; answers [`Response::AllDialed`].
    HoldAll(Vec<Dial>),
    /// Connects and keeps the connection; answers [`Response::Dialed`].
    Hold(Box<Dial>),
    /// Begins so many connections, as the application, and keeps whatever becomes of them; answers
    /// [`Response::Flooded`].
    Flood {
        /// Where to.
        to: SocketAddr,
        /// How many.
        count: usize,
        /// Whether all have connected before the first sends its SYN (TCP_FASTOPEN_CONNECT).
        deferred: bool,
    },
    /// Begins a connection from an address and port that other sockets may have as well, and keeps it.
    Begin {
        /// What it is bound to.
        from: SocketAddr,
        /// Where it goes.
        to: SocketAddr,
    },
    /// Opens as many descriptors as it may, watched by one epoll instance so many times altogether.
    Crowd {
        /// How many times.
        watches: usize,
    },
    /// Starts so many processes that do nothing; they end with this one.
    Sleepers {
        /// How many.
        count: usize,
    },
    /// Connects, as the application, dissolves the connection with AF_UNSPEC, and listens on the same
    /// socket; answers [`Response::Reused`].
    Reuse(SocketAddr),
    /// Listens, as the sidecar, and never accepts.
    Hang(SocketAddr),
    /// Sends bare packets over a raw socket, each from another port of an address; both are IPv4.
    Packets {
        /// The source; ports count up from this one.
        from: std::net::SocketAddrV4,
        /// The destination.
        to: std::net::SocketAddrV4,
        /// How many.
        count: u16,
        /// [`SYN`] or [`ACK`].
        flags: u8,
    },
    /// Does something that only the tests of evasion need.
    Trick(Trick),
    /// Answers datagrams; answers [`Response::Done`].
    AnswerUdp(AnswerUdp),
    /// Sends a datagram and waits for its answer; answers [`Response::UdpAnswered`].
    SendUdp(Box<SendUdp>),
    /// Does the same with many, some at the same time; answers [`Response::AllUdpAnswered`].
    SendTogether {
        /// The datagrams.
        all: Vec<SendUdp>,
        /// Longest wait for an answer, in milliseconds.
        patience_ms: u64,
    },
    /// Sends on every held connection and reads the echo; answers how many still work.
    Echo,
    /// Reads the names of both ends of every held connection again; answers
    /// [`Response::AllDialed`].
    Again,
}

/// What a connecting end sends to request the accepting end's names again.
pub const REREAD_NAMES: &[u8; 4] = b"name";

/// Names of one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// getsockname.
    pub local: SocketAddr,
    /// getpeername.
    pub peer: SocketAddr,
    /// SO_ORIGINAL_DST at level 0, or errno.
    pub original_v4: Result<SocketAddr, i32>,
    /// SO_ORIGINAL_DST at level 41, or errno.
    pub original_v6: Result<SocketAddr, i32>,
}

/// A connection that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connected {
    /// The port the accepting listener is bound to.
    pub accepted_by: u16,
    /// The connecting end.
    pub client: Names,
    /// The accepting end.
    pub server: Names,
}

/// How a socket sees itself that was connected and listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reused {
    /// getsockname.
    pub address: SocketAddr,
    /// SO_ORIGINAL_DST at levels 0 and 41, or errno.
    pub original: [Result<SocketAddr, i32>; 2],
}

/// What became of connections that were begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flooded {
    /// On their way, or made.
    pub pending: usize,
    /// Refused at once.
    pub refused: usize,
    /// Failed at once in another way.
    pub failed: usize,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Response {
    /// Listening; the group's id.
    Listening(usize),
    /// Done.
    Done,
    /// The connection, or errno.
    Dialed(Result<Box<Connected>, i32>),
    /// The connections, or errnos.
    AllDialed(Vec<Result<Connected, i32>>),
    /// Connections that were begun.
    Flooded(Flooded),
    /// The answer to a datagram, or errno.
    UdpAnswered(Result<Box<UdpAnswer>, i32>),
    /// The answers to datagrams, or errnos.
    AllUdpAnswered(Vec<Result<UdpAnswer, i32>>),
    /// A number.
    Count(usize),
    /// A socket that was connected and listens.
    Reused(Reused),
    /// Both ends of a connection that has no accepting end.
    Ends(Box<[Names; 2]>),
    /// This kernel does not let anyone try it, with this errno.
    Unavailable(i32),
    /// It could not be tried.
    Failed(String),
}
