//! What processes of the soak send to each other: jobs and reports as JSON lines, and the record
//! that the accepting process sends on a connection.

use std::{
    io::{self, Read},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// Who accepts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Who {
    /// The sidecar of a pod.
    Sidecar(u16),
    /// The app of a pod.
    App(u16),
    /// Outside all pods.
    Outside,
}

impl Who {
    const APP: u16 = 0x4000;
    const OUTSIDE: u16 = 0x8000;

    fn number(self) -> u16 {
        match self {
            Self::Sidecar(pod) => pod,
            Self::App(pod) => pod | Self::APP,
            Self::Outside => Self::OUTSIDE,
        }
    }

    fn of(number: u16) -> Self {
        match number {
            Self::OUTSIDE.. => Self::Outside,
            Self::APP.. => Self::App(number & !Self::APP),
            pod => Self::Sidecar(pod),
        }
    }
}

/// Kinds of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Accept connections and report what is known of them.
    Serve {
        /// As whom.
        who: Who,
        /// On these ports, of both families.
        ports: Vec<u16>,
    },
    /// Accept nothing: connections to these ports hang.
    Hang {
        /// The ports.
        ports: Vec<u16>,
    },
    /// Make connections, one after the other in each thread.
    Dial {
        /// Threads.
        threads: usize,
        /// Pause after a connection, in milliseconds.
        pause: u64,
        /// Of the random order.
        seed: u64,
    },
    /// Begin connections that are never made.
    Flood {
        /// To each of these.
        to: Vec<SocketAddr>,
        /// So many.
        each: usize,
    },
    /// Hold connections open and let small messages go round on them.
    Stream {
        /// To this address.
        to: SocketAddr,
        /// So many.
        count: u32,
    },
    /// Send back what comes.
    Echo {
        /// On these ports.
        ports: Vec<u16>,
    },
}

/// A server to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Its number in reports.
    pub id: u32,
    /// Where.
    pub to: SocketAddr,
    /// On an IPv6 socket although it is IPv4.
    pub mapped: bool,
    /// Bound to this address.
    pub bind: Option<IpAddr>,
    /// With this mark, and the address it is bound to may be another host's (mode TPROXY).
    pub mark: Option<u32>,
}

impl Target {
    /// With a number of its own.
    pub fn new(to: SocketAddr) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Self {
            id: NUMBER.fetch_add(1, Ordering::Relaxed),
            to,
            mapped: false,
            bind: None,
            mark: None,
        }
    }
}

/// Said to a running process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Connect to it from now on.
    Add(Vec<Target>),
    /// Not any more.
    Remove(Vec<u32>),
    /// Have so many IPv4 and IPv6 listeners on a port.
    Keep(u16, usize),
    /// Report what has been seen.
    Report,
    /// End when all that has begun is done.
    End,
}

/// One who accepted a connection, or handed it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// Who.
    pub who: Who,
    /// The port its listener is bound to; 0 when it could not hand the connection on.
    pub port: u16,
    /// SO_ORIGINAL_DST.
    pub original: Option<SocketAddr>,
    /// getpeername.
    pub peer: SocketAddr,
}

/// Bytes of a hop in a connection.
pub const HOP: usize = 44;
const MAGIC: [u8; 4] = *b"soak";

impl Hop {
    /// As sent down a connection.
    pub fn to_bytes(self) -> [u8; HOP] {
        let mut bytes = [0; HOP];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.who.number().to_be_bytes());
        bytes[6..8].copy_from_slice(&self.port.to_be_bytes());
        let none = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        put(&mut bytes[8..26], self.original.unwrap_or(none));
        put(&mut bytes[26..44], self.peer);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != HOP || bytes[..4] != MAGIC {
            return None;
        }
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let original = get(&bytes[8..26]);
        Some(Self {
            who: Who::of(number(4)),
            port: number(6),
            original: (original.port() != 0).then_some(original),
            peer: get(&bytes[26..44]),
        })
    }

    /// Reads all there are, to the end of the connection.
    pub fn read_all(from: &mut impl Read) -> io::Result<Vec<Self>> {
        const MAX_HOPS: usize = 4;
        let mut bytes = Vec::with_capacity(HOP * MAX_HOPS);
        from.take((HOP * MAX_HOPS) as u64).read_to_end(&mut bytes)?;
        bytes
            .chunks(HOP)
            .map(|chunk| Self::from_bytes(chunk).ok_or_else(|| io::ErrorKind::InvalidData.into()))
            .collect()
    }
}

fn put(bytes: &mut [u8], address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
}

fn get(bytes: &[u8]) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[..16]);
    let port = u16::from_be_bytes([bytes[16], bytes[17]]);
    SocketAddr::new(IpAddr::from(octets).to_canonical(), port)
}

/// What became of one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`Target::id`].
    pub target: u32,
    /// [`now`] before it began and after it ended.
    pub time: [u64; 2],
    /// How it ended.
    pub outcome: Outcome,
}

/// A connection that takes long. Its report follows when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hanging {
    /// [`now`] before it began.
    pub since: u64,
    /// [`Target::id`].
    pub target: u32,
}

/// Said by a process that dials.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Dialed {
    /// A connection has ended.
    Ended(Report),
    /// A connection takes long.
    Hangs(Hanging),
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// connect(2) failed.
    NotMade(i32),
    /// It was made, and then lost.
    Broken(i32),
    /// The connection was accepted.
    Answered {
        /// getsockname.
        local: SocketAddr,
        /// getpeername.
        peer: SocketAddr,
        /// Who it went through, in order.
        hops: Vec<Hop>,
    },
}

/// What a flood came to.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Flooded {
    /// Connections that hang.
    pub pending: usize,
    /// Refused.
    pub refused: usize,
    /// Failed otherwise.
    pub failed: usize,
}

/// What streams have seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Streamed {
    /// Messages that went round.
    pub messages: u64,
    /// The longest time from when one was due to when it was back.
    pub worst: Duration,
    /// Those that took long.
    pub late: Vec<Late>,
    /// How connections ended that should not have.
    pub broken: Vec<String>,
}

/// A message that took long.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Late {
    /// From when it was due.
    pub by: Duration,
    /// [`now`] when it was back.
    pub until: u64,
}

impl Late {
    /// Whether both were under way at some time, or almost.
    pub fn is_beside(&self, other: &Self, almost: Duration) -> bool {
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        let since = |late: &Self| late.until.saturating_sub(nanos(late.by + almost));
        since(self) <= other.until && since(other) <= self.until
    }
}

/// The shared clock of all processes, in nanoseconds.
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a local variable; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
