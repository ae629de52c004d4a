//! State of single connections: the handshake row that carries the dialed address from the app's
//! socket to the sidecar's, and the record each of the two sockets keeps.

use crate::addr::Addr;

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
    /// The capture port it connects to.
    pub capture_port: u16,
    /// Padding, zero.
    pub pad: u32,
}

/// The destination the application dialed.
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
    /// Cookie of the connecting socket: only that socket may withdraw the row.
    pub client_cookie: u64,
}

/// The socket a [`SockRecord`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Role {
    /// The application's socket of a redirected connection: getpeername returns the dialed address.
    Dialed = 1,
    /// The sidecar's accepted socket of a redirected connection.
    Accepted = 2,
    /// The connecting socket of a connection that goes to its destination directly.
    Direct = 3,
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
    /// The dialed port, host order.
    pub port: u16,
    /// A [`Role`].
    pub role: u16,
    /// 1 when sidetrack bound the source address, 0 when the application did.
    pub bound_by_sidetrack: u16,
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
