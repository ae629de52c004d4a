//! DNS queries over UDP on their way to the sidecar.
//!
//! The application's socket sends them to the dedicated address of the server that it asks, so that each server is
//! another peer. The sidecar listens on 127.0.0.1 or ::1 only. On lo, which receives all of these queries, that address
//! becomes the source, and the sidecar's the destination. The sidecar answers to what names the server, and its answer
//! goes from there to the application (`dns/queries.rs`).
//!
//! So an error of ICMP, if the sidecar does not listen yet, quotes addresses that no connected socket has: the
//! application waits and asks again, as with the connection tracking zones of iptables.

use aya_ebpf::{Global, bindings::TC_ACT_UNSPEC, macros::classifier, programs::TcContext};
use sidetrack_common::{
    addr::{Addr, Family},
    target::is_dedicated,
};
use sidetrack_ebpf::ctx::{
    IPPROTO_UDP,
    skb::{ETH_P_IP, ETH_P_IPV6, Packet},
};

/// Where the pod's sidecar answers, host order.
#[unsafe(no_mangle)]
static DNS_CAPTURE_PORT: Global<u32> = Global::new(0);

/// Bytes of an IPv6 header.
const IPV6_HLEN: u32 = 40;

/// A packet that lo receives.
#[classifier]
pub fn st_dns_queries(ctx: TcContext) -> i32 {
    let packet = Packet::new(&ctx);
    // What cannot be rewritten goes to an address where nothing listens.
    let _ = match packet.protocol() {
        ETH_P_IP => ipv4(&packet),
        ETH_P_IPV6 => ipv6(&packet),
        _ => None,
    };
    TC_ACT_UNSPEC
}

#[inline(always)]
fn ipv4(packet: &Packet) -> Option<()> {
    let header: [u8; 20] = packet.bytes(0)?;
    if u32::from(header[9]) != IPPROTO_UDP {
        return None;
    }
    let udp = u32::from(header[0] & 0x0f) * 4;
    let [source, to] = addresses(&header, 12);
    is_query(packet, Addr::v4(to), udp).then_some(())?;
    let sidecar = Addr::LOOPBACK_V4.to_v4_be().to_ne_bytes();
    packet.redirect_v4(udp, [source, to], sidecar)
}

#[inline(always)]
fn ipv6(packet: &Packet) -> Option<()> {
    let header: [u8; 40] = packet.bytes(0)?;
    if u32::from(header[6]) != IPPROTO_UDP {
        return None;
    }
    let [source, to] = addresses(&header, 8);
    is_query(packet, Addr::v6(to), IPV6_HLEN).then_some(())?;
    let sidecar = Addr::loopback_of(Family::V6).octets();
    packet.redirect_v6(IPV6_HLEN, [source, to], sidecar)
}

/// Source and destination, which follow each other in a header.
#[inline(always)]
fn addresses<const N: usize, const HLEN: usize>(header: &[u8; HLEN], at: usize) -> [[u8; N]; 2] {
    let mut addresses = [[0; N]; 2];
    for (index, byte) in addresses.as_flattened_mut().iter_mut().enumerate() {
        *byte = header[at + index];
    }
    addresses
}

/// Whether a datagram goes to what names a server, at the sidecar's port.
#[inline(always)]
fn is_query(packet: &Packet, to: Addr, udp: u32) -> bool {
    let port = |[high, low]: [u8; 2]| u32::from(u16::from_be_bytes([high, low]));
    is_dedicated(to) && packet.bytes(udp + 2).map(port) == Some(DNS_CAPTURE_PORT.load())
}
