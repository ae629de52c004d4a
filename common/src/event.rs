//! What the kernel programs say about single connections: to those who trace, and the last refusal of each pod and
//! reason.

use crate::{
    addr::Addr,
    btf::{RuleField, TextByte},
    names::EVENTS_BYTES,
};

/// What an [`Event`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum EventKind {
    /// A connect was decided.
    Outbound = 1,
    /// An inbound connection was decided.
    Inbound = 2,
    /// A connection that was redirected failed before the sidecar accepted it.
    Outcome = 3,
}

impl EventKind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Outbound),
            2 => Some(Self::Inbound),
            3 => Some(Self::Outcome),
            _ => None,
        }
    }
}

/// Bytes of a process's name, NUL-padded (`TASK_COMM_LEN`).
pub const COMM_LEN: usize = 16;

/// One connection, at one moment.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Event {
    /// Nanoseconds since boot (`CLOCK_BOOTTIME`).
    pub at: u64,
    /// Network namespace cookie.
    pub netns: u64,
    /// The connecting socket's cookie; 0 for inbound connections.
    pub cookie: u64,
    /// The client's address; unspecified for a socket that is not bound yet.
    pub source: Addr,
    /// The address dialed.
    pub destination: Addr,
    /// The client's port, host order; 0 if it has none yet.
    pub source_port: u16,
    /// The port dialed, host order.
    pub destination_port: u16,
    /// The capture port of a redirect, host order; 0 if it is none.
    pub capture_port: u16,
    /// An [`EventKind`].
    pub kind: u16,
    /// A [`crate::rule::Rule`].
    pub rule: RuleField,
    /// See [`crate::count::CountKey::index`].
    pub index: u32,
    /// What the caller of connect gets; 0 if it does not fail.
    pub errno: i32,
    /// The process that connects, in the host's numbering; 0 where the program does not run in its context.
    pub pid: u32,
    /// fsuid of the socket's creator in the host's numbering; only with a process.
    pub uid: u32,
    /// fsgid of the same; only with a process.
    pub gid: u32,
    /// The thread's name, NUL-padded.
    pub comm: [TextByte; COMM_LEN],
    /// Equal to `at` once everything is written. A row that two connections write at a time has two values, and says
    /// nothing.
    pub written: u64,
}

/// The room that [`EVENTS_BYTES`] is documented to have; the kernel puts eight bytes before each.
const _: () = assert!(EVENTS_BYTES as usize / (size_of::<Event>() + 8) >= 8_700);

impl Event {
    /// Whether it is of one connection, and complete.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.at == self.written && self.at != 0
    }
}

/// Row of [`TRACING`](crate::names::TRACING): until when events are wanted, in nanoseconds since boot, 0 if they are
/// not. An agent that dies cannot leave them on.
pub const TRACED_UNTIL: u32 = 0;
/// Row of [`TRACING`](crate::names::TRACING): how many events found no room since the maps were made.
pub const EVENTS_LOST: u32 = 1;

/// Key of a pod's last refusal for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RefusalKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// A [`crate::rule::Rule`].
    pub rule: RuleField,
    /// Padding, zero.
    pub pad: u32,
}

const _: () = assert!(size_of::<Event>() == 112);
const _: () = assert!(size_of::<RefusalKey>() == 16);

#[cfg(test)]
mod tests;
