//! An accelerated connection: what an end sends goes into the receive queue of the other end's socket, past TCP.
//!
//! The kernel puts no limit to that queue, and reads it before what came by TCP. So each direction has a
//! window: what exceeds it goes by TCP, which makes the sender wait. It may leave TCP again when everything
//! has been read, or bytes would overtake others.

use crate::addr::Addr;

/// Bytes that may be under way in one direction, as far as the sender sees.
pub const WINDOW: u64 = 256 * 1024;

/// The connection as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowKey {
    /// Cookie of the network namespace.
    pub netns: u64,
    /// The end's own address.
    pub local: Addr,
    /// The other's.
    pub remote: Addr,
    /// The end's own port, host order.
    pub local_port: u16,
    /// The other's, host order.
    pub remote_port: u16,
    /// Zero.
    pub pad: u32,
}

impl FlowKey {
    /// The same connection as the other end sees it.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            netns: self.netns,
            local: self.remote,
            remote: self.local,
            local_port: self.remote_port,
            remote_port: self.local_port,
            pad: 0,
        }
    }
}

/// What an end has sent, and what is known of its reader. The end writes the first two fields, its reader the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Flow {
    /// Bytes sent past TCP.
    pub sent: u64,
    /// 1 while the end sends by TCP.
    pub by_tcp: u32,
    /// How far the reader has read what came by TCP: a sequence number.
    pub read_seq: u32,
    /// Bytes sent past TCP that the reader has read, as of when the reader last sent something itself.
    pub read: u64,
}

/// The path of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through the socket map, to the reader's queue.
    Sockmap,
    /// By TCP.
    Tcp,
}

impl Flow {
    /// A connection of which nothing was sent, or nothing is known.
    #[inline(always)]
    #[must_use]
    pub const fn new(by_tcp: bool) -> Self {
        Self {
            sent: 0,
            by_tcp: by_tcp as u32,
            read_seq: 0,
            read: 0,
        }
    }

    /// The path of a message of so many bytes; `write_seq` is TCP's next sequence number.
    #[inline(always)]
    #[must_use]
    pub const fn path(&self, size: u32, write_seq: u32) -> Path {
        let under_way = self.sent.saturating_sub(self.read);
        let is_all_read = under_way == 0 && self.read_seq == write_seq;
        if self.by_tcp != 0 && !is_all_read || under_way + size as u64 > WINDOW {
            return Path::Tcp;
        }
        Path::Sockmap
    }

    /// Bytes that the reader has read, if so many are in its queue. They may be counted before they get there.
    #[inline(always)]
    #[must_use]
    pub const fn read_with(&self, unread: u32) -> u64 {
        self.sent.saturating_sub(unread as u64)
    }
}

const _: () = assert!(size_of::<FlowKey>() == 48);
const _: () = assert!(size_of::<Flow>() == 24);

#[cfg(test)]
mod tests;
