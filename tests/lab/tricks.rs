//! What an application may try to get past the sidecar, beyond connecting in an unusual manner.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::protocol::Dial;

/// How io_uring is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Whether a thread of the kernel takes the submissions (IORING_SETUP_SQPOLL).
    pub polled: bool,
    /// Whether the ring creates the socket as well, which has no descriptor until it is connected.
    pub direct: bool,
}

/// An option that not everyone may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privilege {
    /// IP_FREEBIND: bind to any address. Needs no capability.
    FreeBind,
    /// IP_TRANSPARENT: the same, and packets are sent from it.
    Transparent,
    /// TCP_REPAIR: connect makes an established socket without sending anything.
    Repair,
}

/// A trick; played by the application unless it says otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Trick {
    /// Sets up an io_uring instance; answers `Done` or `Unavailable`.
    Ring(Ring),
    /// Creates the socket of a connection and hands it to the first process that connects to a Unix socket.
    Lend {
        /// Its file.
        at: PathBuf,
        /// What it is to be used for.
        dial: Box<Dial>,
    },
    /// Gets a socket that is lent, and connects it; answers `Dialed`.
    Borrow {
        /// The Unix socket's file.
        at: PathBuf,
        /// The connection.
        dial: Box<Dial>,
    },
    /// Binds a socket and connects it to an address that leads back to itself; answers `Ends`, which are
    /// the same.
    SelfConnect {
        /// What it is bound to.
        from: SocketAddr,
        /// Where it goes.
        to: SocketAddr,
    },
    /// Connects two sockets to each other, neither of which listens; answers `Ends`. The SYN of the first
    /// must get lost.
    Simultaneous([SocketAddr; 2]),
    /// Moves to a user and a network namespace of its own, and connects; answers `AllDialed` or
    /// `Unavailable`. The first is a socket that is created there, 0 if it connected. The second is the
    /// answer to TCP_REPAIR on a socket of the pod, 0 if nothing is wrong. The third is this socket's
    /// connection.
    Nested(SocketAddr),
}
