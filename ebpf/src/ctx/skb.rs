//! `struct __sk_buff`: a packet on its way in, before it is routed.

use aya_ebpf::{
    bindings::{__sk_buff, bpf_sock},
    helpers::{
        bpf_sk_assign, bpf_sk_release, bpf_skb_load_bytes, bpf_skb_load_bytes_relative,
        bpf_skb_pull_data, bpf_skb_store_bytes, bpf_skc_lookup_tcp,
    },
    programs::TcContext,
};

use sidetrack_common::addr::Family;

use super::{field, set_field};

mod datagram;
mod reset;

/// IPv4, of linux/if_ether.h.
pub const ETH_P_IP: u16 = 0x0800;
/// IPv6.
pub const ETH_P_IPV6: u16 = 0x86dd;
/// A VLAN tag.
pub const ETH_P_8021Q: u16 = 0x8100;
/// Bytes of an Ethernet header.
const ETH_HLEN: u32 = 14;

/// A provider's VLAN tag.
pub const ETH_P_8021AD: u16 = 0x88a8;

/// The number of the VLAN, in a tag.
const VLAN_ID: u32 = 0x0fff;

/// `PACKET_HOST` of linux/if_packet.h: for this host, not only for the wire.
const PACKET_HOST: u32 = 0;
/// `BPF_HDR_START_NET`: offsets count from the IP header, which interfaces without link layer begin with.
const FROM_IP_HEADER: u32 = 1;
/// `BPF_F_CURRENT_NETNS`.
pub const CURRENT_NETNS: u64 = u64::MAX;
/// `BPF_TCP_LISTEN`.
const TCP_LISTEN: u32 = 10;
/// `BPF_TCP_SYN_SENT`.
const TCP_SYN_SENT: u32 = 2;
/// Bytes of a `struct bpf_sock_tuple` of each family.
const TUPLE_V4: u32 = 12;
const TUPLE_V6: u32 = 36;

/// A packet.
pub struct Packet {
    skb: *mut __sk_buff,
}

/// Who receives a TCP packet.
#[derive(Clone, Copy)]
pub enum Owner {
    /// No socket.
    NoSocket,
    /// A listening socket, and whether the packet was given to it.
    Listener {
        /// Whether a program chose it.
        is_assigned: bool,
    },
    /// A connection.
    Connection {
        /// Whether its SYN has no answer yet.
        begins: bool,
    },
}

impl Packet {
    /// A packet of aya's context.
    #[inline(always)]
    pub fn new(ctx: &TcContext) -> Self {
        Self { skb: ctx.skb.skb }
    }

    /// Whether the IP layer of this interface receives it: not for other hosts, and without the tag of a VLAN, with
    /// which it continues to another interface. A tag of VLAN 0 only gives a priority.
    #[inline(always)]
    pub fn is_received(&self) -> bool {
        let is_tagged = self.has_tag() && !self.has_priority_tag();
        field!(self.skb, pkt_type) == PACKET_HOST && !is_tagged
    }

    /// Whether it has a tag of VLAN 0, which the kernel takes off after this program
    /// (`__netif_receive_skb_core`, net/core/dev.c).
    #[inline(always)]
    pub fn has_priority_tag(&self) -> bool {
        self.has_tag() && field!(self.skb, vlan_tci) & VLAN_ID == 0
    }

    #[inline(always)]
    fn has_tag(&self) -> bool {
        field!(self.skb, vlan_present) != 0
    }

    /// `ETH_P_*`, host order.
    #[inline(always)]
    pub fn protocol(&self) -> u16 {
        u16::from_be(field!(self.skb, protocol) as u16)
    }

    /// Bytes from the IP header on; `None` if they cannot be read, as when the packet is shorter.
    #[inline(always)]
    pub fn bytes<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.linear_bytes(offset).or_else(|| {
            // The sender may have put them into pages, which that helper does not read.
            let end = ETH_HLEN + offset + N as u32;
            let len = field!(self.skb, len);
            // SAFETY: the program's own context.
            let failed = unsafe { bpf_skb_pull_data(self.skb, end.min(len)) };
            (failed == 0).then(|| self.linear_bytes(offset))?
        })
    }

    #[inline(always)]
    fn linear_bytes<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        // SAFETY: the program's own context, and room for that many bytes.
        let failed = unsafe {
            bpf_skb_load_bytes_relative(
                self.skb.cast(),
                offset,
                bytes.as_mut_ptr().cast(),
                N as u32,
                FROM_IP_HEADER,
            )
        };
        (failed == 0).then_some(bytes)
    }

    /// Bytes from the packet's first one on.
    #[inline(always)]
    fn load<const N: usize>(&self, at: u32) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let room: *mut core::ffi::c_void = bytes.as_mut_ptr().cast();
        // SAFETY: the program's own context, and room for that many bytes.
        let failed = unsafe { bpf_skb_load_bytes(self.skb.cast(), at, room, N as u32) };
        (failed == 0).then_some(bytes)
    }

    #[inline(always)]
    fn store(&self, at: u32, bytes: &[u8]) -> Option<()> {
        let (from, len) = (bytes.as_ptr().cast(), bytes.len() as u32);
        // SAFETY: the program's own context, and that many bytes.
        let failed = unsafe { bpf_skb_store_bytes(self.skb.cast(), at, from, len, 0) };
        (failed == 0).then_some(())
    }

    /// Sets the mark that routing rules see.
    #[inline(always)]
    pub fn set_mark(&self, mark: u32) {
        set_field!(self.skb, mark, mark);
    }

    /// Finds the socket that would receive a TCP packet in a network, by its number. If it listens and `assign` says so then, the packet
    /// is given to it; before Linux 6.6 that fails for listeners with SO_REUSEPORT.
    #[inline(always)]
    pub fn look_up(&self, tuple: &mut Tuple, netns: u64, assign: impl FnOnce() -> bool) -> Owner {
        // Known where it is used: the verifier does not follow a length that was put aside.
        let len = if self.protocol() == ETH_P_IP {
            TUPLE_V4
        } else {
            TUPLE_V6
        };
        // SAFETY: the program's own context, and a tuple of that length.
        let sk: *mut bpf_sock = unsafe {
            bpf_skc_lookup_tcp(
                self.skb.cast(),
                tuple.words.as_mut_ptr().cast(),
                len,
                netns,
                0,
            )
        };
        if sk.is_null() {
            return Owner::NoSocket;
        }
        let state = field!(sk, state);
        let is_listener = state == TCP_LISTEN;
        let mut is_assigned = false;
        if is_listener && assign() {
            // SAFETY: the program's own context, and a socket that it holds.
            is_assigned = unsafe { bpf_sk_assign(self.skb.cast(), sk.cast(), 0) } == 0;
        }
        // SAFETY: the lookup took a reference on it.
        unsafe { bpf_sk_release(sk.cast()) };
        if is_listener {
            Owner::Listener { is_assigned }
        } else {
            Owner::Connection {
                begins: state == TCP_SYN_SENT,
            }
        }
    }
}

/// Addresses and ports of a TCP packet, in the layout of `struct bpf_sock_tuple`.
pub struct Tuple {
    words: [u32; 9],
    family: Family,
}

impl Tuple {
    /// Of an IPv4 header.
    #[inline(always)]
    pub fn v4(header: &[u8; 20]) -> Self {
        let mut words = [0; 9];
        for (at, word) in words.iter_mut().enumerate().take(2) {
            *word = word_at(header, 12 + at * 4);
        }
        Self {
            words,
            family: Family::V4,
        }
    }

    /// Of an IPv6 header.
    #[inline(always)]
    pub fn v6(header: &[u8; 40]) -> Self {
        let mut words = [0; 9];
        for (at, word) in words.iter_mut().enumerate().take(8) {
            *word = word_at(header, 8 + at * 4);
        }
        Self {
            words,
            family: Family::V6,
        }
    }

    /// Of the answer.
    #[inline(always)]
    pub fn reversed(&self) -> Self {
        let Self { mut words, family } = *self;
        let width = match family {
            Family::V4 => 1,
            Family::V6 => 4,
        };
        for at in 0..width {
            words.swap(at, at + width);
        }
        let ports = 2 * width;
        words[ports] = words[ports].rotate_right(16);
        Self { words, family }
    }

    /// The same to another port, host order.
    #[inline(always)]
    pub fn to_port(&self, port: u16) -> Self {
        let Self { mut words, family } = *self;
        let at = Self::ports_at(family);
        words[at] = words[at] & 0xffff | u32::from(port.to_be()) << 16;
        Self { words, family }
    }

    /// The port that the packet was sent to, host order.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        u16::from_be((self.words[Self::ports_at(self.family)] >> 16) as u16)
    }

    #[inline(always)]
    const fn ports_at(family: Family) -> usize {
        match family {
            Family::V4 => 2,
            Family::V6 => 8,
        }
    }

    /// Adds the ports of a TCP header.
    #[inline(always)]
    pub fn set_ports(&mut self, tcp: &[u8; 14]) {
        self.words[Self::ports_at(self.family)] = word_at(tcp, 0);
    }
}

#[inline(always)]
fn word_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
