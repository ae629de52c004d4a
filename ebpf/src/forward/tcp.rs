//! The header of TCP in a packet.

use core::ops::RangeInclusive;

use sidetrack_ebpf::ctx::{
    IPPROTO_TCP,
    skb::{ETH_P_IP, ETH_P_IPV6, Packet, Tuple},
};

/// Fragment offset and "more fragments" of an IPv4 header.
const IS_FRAGMENT: u16 = 0x3fff;

/// Extension headers of IPv6 that can come before TCP.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
/// How many of them are looked at.
const MAX_EXTENSIONS: usize = 6;

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;

/// What the first byte of an IPv4 header can be: version 4, and at least five words.
const IPV4: RangeInclusive<u8> = 0x45..=0x4f;
/// The same of an IPv6 header: version 6.
const IPV6: RangeInclusive<u8> = 0x60..=0x6f;

/// Where TCP begins in a packet, and its addresses.
pub enum Tcp {
    At(u32, Tuple),
    /// It is a part of a packet, behind more headers than are looked at, or cannot be read: the pod's own IP layer,
    /// which puts it together, decides.
    Unclear,
}

/// `None` for what is no TCP over IP.
#[inline(always)]
pub fn tcp(packet: &Packet) -> Option<Tcp> {
    match packet.protocol() {
        ETH_P_IP => ipv4(packet),
        ETH_P_IPV6 => ipv6(packet),
        _ => None,
    }
}

#[inline(always)]
fn ipv4(packet: &Packet) -> Option<Tcp> {
    let Some(header) = packet.bytes::<20>(0) else {
        return Some(Tcp::Unclear);
    };
    // The pod's IP layer drops what has no header of its kind.
    if !IPV4.contains(&header[0]) || u32::from(header[9]) != IPPROTO_TCP {
        return None;
    }
    if u16::from_be_bytes([header[6], header[7]]) & IS_FRAGMENT != 0 {
        return Some(Tcp::Unclear);
    }
    let offset = u32::from(header[0] & 0x0f) * 4;
    Some(Tcp::At(offset, Tuple::v4(&header)))
}

#[inline(always)]
fn ipv6(packet: &Packet) -> Option<Tcp> {
    let Some(header) = packet.bytes::<40>(0) else {
        return Some(Tcp::Unclear);
    };
    if !IPV6.contains(&header[0]) {
        return None;
    }
    let (mut next, mut offset) = (header[6], 40);
    for _ in 0..MAX_EXTENSIONS {
        if u32::from(next) == IPPROTO_TCP {
            return Some(Tcp::At(offset, Tuple::v6(&header)));
        }
        let is_fragment = next == FRAGMENT;
        if !is_extension(next) {
            return None;
        }
        let Some(len) = packet.bytes::<2>(offset) else {
            return Some(Tcp::Unclear);
        };
        if is_fragment {
            let may_be_tcp = u32::from(len[0]) == IPPROTO_TCP || is_extension(len[0]);
            return may_be_tcp.then_some(Tcp::Unclear);
        }
        offset += if next == AUTHENTICATION {
            (u32::from(len[1]) + 2) * 4
        } else {
            (u32::from(len[1]) + 1) * 8
        };
        next = len[0];
    }
    Some(Tcp::Unclear)
}

/// Whether a header of IPv6 is one behind which TCP may come.
#[inline(always)]
fn is_extension(header: u8) -> bool {
    matches!(
        header,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION
    )
}
