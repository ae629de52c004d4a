//! State of single connections: the handshake row that carries the dialed address from the app's
//! socket to the sidecar's, and the record each of the two sockets keeps.

use crate::{
    addr::{Addr, Family},
    target::Target,
};

/// Key of a handshake row: the socket that connects to the sidecar. Ports in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct HandshakeKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// The connecting socket's address.
    pub client: Addr,
    /// The connecting socket's port.
    pub client_port: u16,
    /// The port it connects to.
    pub target_port: u16,
    /// The last word of the address it connects to, network byte order.
    pub target_word: u32,
}

impl HandshakeKey {
    /// The key of a connection from `client` to `target`, each an address and a port in host order.
    #[inline(always)]
    #[must_use]
    pub const fn new(netns: u64, client: (Addr, u16), target: (Addr, u16)) -> Self {
        Self {
            netns,
            client: client.0,
            client_port: client.1,
            target_port: target.1,
            target_word: target.0.to_v4_be(),
        }
    }

    /// Whether two keys are the same.
    #[inline(always)]
    #[must_use]
    pub const fn is(&self, other: &Self) -> bool {
        self.netns == other.netns
            && self.client.is(other.client)
            && self.client_port == other.client_port
            && self.target_port == other.target_port
            && self.target_word == other.target_word
    }

    /// A number for the key, which spreads well in both halves. Keys of one pod can be made to have the same one; for
    /// keys of two pods that takes knowing the seed.
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self, seed: u64) -> u64 {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        let client = self.client.to_v6_be();
        let words = [
            self.netns,
            (client[0] as u64) << 32 | client[1] as u64,
            (client[2] as u64) << 32 | client[3] as u64,
            (self.target_word as u64) << 32
                | (self.client_port as u64) << 16
                | self.target_port as u64,
        ];
        let mut hash = seed;
        let mut at = 0;
        while at < words.len() {
            hash = (hash ^ words[at]).wrapping_mul(MIX);
            // Multiplication carries differences upwards only.
            hash ^= hash >> 32;
            at += 1;
        }
        hash
    }
}

/// A redirected connection, from the socket that connects to the one that the sidecar accepts.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Handshake {
    /// The address the application dialed.
    pub dialed: Addr,
    /// See [`SockRecord::source`].
    pub source: Addr,
    /// The port it dialed, host order.
    pub dialed_port: u16,
    /// The capture port it is redirected to, host order.
    pub capture_port: u16,
    /// 1 if the connection goes to the address that was dialed ([`Role::Assigned`]), else 0.
    pub assigned: u32,
    /// Cookie of the connecting socket: only that socket may withdraw the row.
    pub client_cookie: u64,
}

/// Why a redirected connection needs a handshake row, as index in
/// [`HANDSHAKES_BY_REASON`](crate::names::HANDSHAKES_BY_REASON).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HandshakeReason {
    /// The proxy calls its own pod, which has a listener on loopback at the inbound port or rules of iptables.
    OwnPod = 0,
    /// DNS over TCP: the sidecar's server listens on loopback.
    Dns = 1,
    /// The rules capture other loopback addresses, or targets are not local in the pod.
    NoTargets = 2,
    /// The application's socket is bound to loopback.
    LoopbackSource = 3,
    /// The pod has used its quota of dedicated targets and the pool is used up, or those that are tried name other
    /// destinations.
    ManyDestinations = 4,
    /// In mode TPROXY the proxy calls its own pod.
    Transparent = 5,
    /// Another program has translated a destination to an address of the pod, mostly of the proxy's connections.
    Translated = 6,
}

impl HandshakeReason {
    /// Every reason with its name in metrics, in the order of the numbers.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::OwnPod, "own-pod"),
        (Self::Dns, "dns"),
        (Self::NoTargets, "no-targets"),
        (Self::LoopbackSource, "loopback-source"),
        (Self::ManyDestinations, "many-destinations"),
        (Self::Transparent, "transparent"),
        (Self::Translated, "translated"),
    ];
}

/// Value of a handshake row. The kernel uses the memory of a row that is removed for another one at once: a program
/// that reads a row copies what it says, and then looks whose it is.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct HandshakeRow {
    /// The row's key.
    pub key: HandshakeKey,
    /// What it says.
    pub handshake: Handshake,
}

/// Key of a destination: the dedicated [`Target`] that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct DestinationKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// The last two words of the target's address, network byte order: they differ for all targets.
    pub target_be: [u32; 2],
    /// The target's port, host order: the capture port.
    pub target_port: u16,
    /// Padding, zero.
    pub pad: u16,
    /// Zero. Two numbers rather than an array: LLVM calls a function to clear one, and the stack has no room for that.
    pub more_pad: u32,
}

impl DestinationKey {
    /// The key of a target in a pod.
    #[inline(always)]
    #[must_use]
    pub const fn new(netns: u64, target: Target) -> Self {
        let [_, _, third, last] = target.addr.to_v6_be();
        Self {
            netns,
            target_be: [third, last],
            target_port: target.port,
            pad: 0,
            more_pad: 0,
        }
    }

    /// Whether two keys are the same.
    #[inline(always)]
    #[must_use]
    pub const fn is(&self, other: &Self) -> bool {
        let (own, others) = (self.target_be, other.target_be);
        self.netns == other.netns
            && (own[0] ^ others[0]) | (own[1] ^ others[1]) == 0
            && self.target_port == other.target_port
    }
}

/// A destination that connections of a pod are redirected from. Its names do not change as long as any socket
/// has the target: both ends of a connection find the names that they have without the redirect.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Destination {
    /// The address that applications dial.
    pub dialed: Addr,
    /// See [`SockRecord::source`].
    pub source: Addr,
    /// The port that they dial, host order.
    pub dialed_port: u16,
    /// Of a DNS server: a number of [`AskedFrom`]. 0 of others.
    pub asked_from: u16,
    /// Not zero: new connections do not take the row, because the pod no longer has its source, or has to give it back
    /// to the pool. Open ones keep their names.
    pub retired: u32,
}

/// Value of a destination's row, with its key as in [`HandshakeRow`].
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct DestinationRow {
    /// The row's key.
    pub key: DestinationKey,
    /// What it says.
    pub destination: Destination,
}

/// The address of the socket that queries to a DNS server come from, which the sidecar's answers go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum AskedFrom {
    /// 127.0.0.1 or ::1, which the kernel chooses for a target, or any address of the pod.
    Loopback = 0,
    /// [`Destination::source`], which the socket is bound to.
    Source = 1,
    /// The target itself: any address of the pod, by a query that names an interface.
    Target = 2,
}

impl Destination {
    /// The address that [`AskedFrom`] says, where this address names the destination.
    #[inline(always)]
    #[must_use]
    pub const fn asked_from(&self, target: Addr) -> Addr {
        const SOURCE: u16 = AskedFrom::Source as u16;
        const TARGET: u16 = AskedFrom::Target as u16;
        match self.asked_from {
            SOURCE => self.source,
            TARGET => target,
            _ => Addr::loopback_of(target.family()),
        }
    }

    /// Whether a connection with these names can have the row. The source counts if the socket is not bound.
    #[inline(always)]
    #[must_use]
    pub const fn is_for(&self, dialed: Addr, dialed_port: u16, source: Addr, bound: bool) -> bool {
        // In one comparison: a branch would double the paths that the verifier walks.
        self.dialed.is(dialed)
            && (self.dialed_port ^ dialed_port) as u32 | self.retired == 0
            && (bound || self.source.is(source))
    }
}

/// The socket a [`SockRecord`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Role {
    /// The application's socket of a redirected connection.
    Dialed = 1,
    /// The sidecar's accepted socket of a redirected connection.
    Accepted = 2,
    /// The connecting socket of a connection that goes to its destination directly.
    Direct = 3,
    /// The connecting socket of a connection that goes to its destination, where the listener on the capture port
    /// takes it.
    Assigned = 4,
}

/// The record of a socket, kept in the socket's own storage: the kernel frees it with the socket.
///
/// SO_ORIGINAL_DST returns the address in every role. With iptables connection tracking returns it,
/// which identifies a connection by its original destination at both ends.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct SockRecord {
    /// The dialed address.
    pub addr: Addr,
    /// The client's address without the redirect, where it differs from the one it has: an unbound socket
    /// gets the loopback address that belongs to its target. Unspecified if it does not differ.
    pub source: Addr,
    /// The dialed port, host order.
    pub port: u16,
    /// A [`Role`].
    pub role: u16,
    /// The capture port, host order; 0 of a direct connection.
    pub capture_port: u16,
    /// The port its packets go to, host order: see [`Target`]. Of the sidecar's socket: the port they came to.
    pub target_port: u16,
}

/// A [`SockRecord`] as the socket's storage has it, with what it counts for.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct StoredRecord {
    /// The record.
    pub record: SockRecord,
    /// Cookie of the network namespace that it is counted for.
    pub netns: u64,
    /// How many records it counts as; 0 if another socket pays, or the socket is closed.
    pub charge: u32,
    /// What it counted as when the socket was closed. The kernel keeps it until the connection ends.
    pub released: u32,
}

/// What the record of a socket counts as, as the agent reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Charge {
    /// See [`StoredRecord::netns`].
    pub netns: u64,
    /// [`StoredRecord::charge`] and [`StoredRecord::released`].
    pub charge: u64,
}

/// What a record counts for that an MPTCP socket has: those of its subflows, of which the kernel makes eight at most
/// (`MPTCP_SUBFLOWS_MAX`), are never closed by themselves.
pub const MPTCP_CHARGE: u32 = 9;

/// What a [`SockRecord`] says about the connection that its socket has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing: it is of an earlier connection.
    Stale,
    /// The socket is the application's, and its connection is redirected.
    Application,
    /// The socket is the sidecar's, and its connection was redirected.
    Sidecar,
    /// The connection goes to the dialed destination.
    Direct,
    /// The same, but to another port: another program has translated the destination, or the socket was connected again
    /// while its pod was not enrolled.
    Translated,
    /// The connection goes to the dialed destination, where the sidecar's listener takes it.
    Assigned,
}

impl SockRecord {
    /// What the record says about the socket's connection, by the ports of both ends. A socket that was disconnected
    /// (`AF_UNSPEC`) keeps the record of its last connection: its next one may have been made while the pod was not
    /// enrolled, or it listens.
    #[inline(always)]
    #[must_use]
    pub const fn meaning(&self, own_port: u16, peer_port: u16) -> Meaning {
        let is_accepted = self.role == Role::Accepted as u16;
        let port = if is_accepted { own_port } else { peer_port };
        if peer_port != 0 && port == self.target_port {
            if is_accepted {
                Meaning::Sidecar
            } else if self.role == Role::Dialed as u16 {
                Meaning::Application
            } else if self.role == Role::Direct as u16 {
                Meaning::Direct
            } else {
                Meaning::Assigned
            }
        } else if peer_port != 0 && self.role == Role::Direct as u16 {
            Meaning::Translated
        } else {
            Meaning::Stale
        }
    }
}

/// Added to [`ListenerKey::family`]: the listener is on a loopback address, and takes connections of its own pod only.
pub const ON_LOOPBACK: u16 = 1 << 8;

/// Key of a listener on one of a sidecar's capture ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ListenerKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// A [`crate::addr::Family`] the listener serves, with [`ON_LOOPBACK`] if it is there.
    pub family: u16,
    /// Capture port, host order.
    pub port: u16,
    /// Slot, below [`crate::names::LISTENER_SLOTS`].
    pub slot: u32,
}

impl ListenerKey {
    /// Whether the listener serves a family.
    #[must_use]
    pub const fn serves(&self, family: Family) -> bool {
        self.family & !ON_LOOPBACK == family as u16
    }
}

/// A listener and the connections that wait to be accepted, as the program that looks at all listeners writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ListenerQueue {
    /// The listener's key.
    pub key: ListenerKey,
    /// `SO_COOKIE`: a socket that serves two families has two keys.
    pub socket: u64,
    /// For how many microseconds the first of them has waited; 0 if that is not known.
    pub oldest_us: u64,
    /// How many wait.
    pub waiting: u32,
    /// How many may. The kernel lets one more wait, and ignores further ones.
    pub limit: u32,
}

/// Key of a socket that the agent looks for. Searches of one purpose look for different sockets, because each is for
/// one pod; those of both purposes may look for the same one at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct WantedKey {
    /// `SO_COOKIE`.
    pub socket: u64,
    /// A [`Purpose`].
    pub purpose: u64,
}

/// What a search is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// To put the socket into the listener map.
    Adopt = 1,
    /// To learn a descriptor of it.
    Find = 2,
}

/// A listening socket that the agent looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct WantedListener {
    /// Network namespace cookie.
    pub netns: u64,
    /// Port it listens on, host order.
    pub port: u16,
    /// 1 if it is wanted for IPv4.
    pub v4: u8,
    /// 1 if it is wanted for IPv6.
    pub v6: u8,
    /// The result of the search: an [`Adopted`], 0 while it was not seen.
    pub adopted: u32,
    /// The descriptor of it that was seen.
    pub fd: u32,
    /// [`ON_LOOPBACK`] if it is there, else 0.
    pub on_loopback: u32,
}

/// The result of the search for a [`WantedListener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Adopted {
    /// It is in the map, or the pod's slots are all used by others of its group.
    Complete = 1,
    /// The map has no room, or the kernel does not take the socket.
    Failed = 2,
}

const _: () = assert!(size_of::<HandshakeKey>() == 32);
const _: () = assert!(size_of::<Handshake>() == 48);
const _: () = assert!(size_of::<HandshakeRow>() == 80);
const _: () = assert!(size_of::<DestinationKey>() == 24);
const _: () = assert!(size_of::<Destination>() == 40);
const _: () = assert!(size_of::<DestinationRow>() == 64);
const _: () = assert!(size_of::<SockRecord>() == 40);
const _: () = assert!(size_of::<StoredRecord>() == 56);
const _: () = assert!(size_of::<ListenerKey>() == 16);
const _: () = assert!(size_of::<ListenerQueue>() == 40);
const _: () = assert!(size_of::<WantedKey>() == 16);
const _: () = assert!(size_of::<WantedListener>() == 24);

#[cfg(test)]
mod tests;
