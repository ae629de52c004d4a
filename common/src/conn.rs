//! State of single connections: the handshake row that carries the dialed address from the app's
//! socket to the sidecar's, and the record each of the two sockets keeps.

use crate::addr::Addr;

/// Key of a handshake row: who is connecting to the sidecar. Ports in host order.
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
    /// The capture port it connects to.
    pub capture_port: u16,
    /// Padding, zero.
    pub pad: u32,
}

/// Where the application wanted to go.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Handshake {
    /// The address it dialed.
    pub dialed: Addr,
    /// The port it dialed, host order.
    pub dialed_port: u16,
    /// Padding, zero.
    pub pad: [u8; 6],
    /// Cookie of the connecting socket: only it may withdraw the row.
    pub client_cookie: u64,
}

/// What a [`SockRecord`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Role {
    /// The application's socket of a redirected connection: its peer is to be named as dialed.
    Dialed = 1,
    /// The sidecar's accepted socket of a redirected connection.
    Accepted = 2,
    /// The connecting socket of a connection that went where it was going.
    Direct = 3,
}

/// What a socket remembers, in the socket's own storage: it dies with the socket. In every role
/// SO_ORIGINAL_DST answers the address: connection tracking, which answers it with iptables, knows
/// a connection by its original destination at both ends.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct SockRecord {
    /// The dialed address.
    pub addr: Addr,
    /// The dialed port, host order.
    pub port: u16,
    /// A [`Role`].
    pub role: u16,
    /// 1 when the source address was bound by us and not by the application.
    pub bound_by_us: u16,
    /// Padding, zero.
    pub pad: u16,
}

/// Key of a sidecar's inbound listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ListenerKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// A [`crate::addr::Family`] the listener serves.
    pub family: u16,
    /// Capture port, host order.
    pub port: u16,
    /// Slot, below [`crate::names::LISTENER_SLOTS`].
    pub slot: u32,
}

/// Key of a connection counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct CountKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// A [`crate::rule::Rule`].
    pub rule: u32,
    /// Position in the rule's list; 0 for rules without one.
    pub index: u32,
}

const _: () = assert!(size_of::<HandshakeKey>() == 32);
const _: () = assert!(size_of::<Handshake>() == 32);
const _: () = assert!(size_of::<SockRecord>() == 24);
const _: () = assert!(size_of::<ListenerKey>() == 16);
const _: () = assert!(size_of::<CountKey>() == 16);
