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
    if u32::from(packet.bytes::<1>(9)?[0]) != IPPROTO_UDP {
        return None;
    }
    let [first] = packet.bytes(0)?;
    let udp = u32::from(first & 0x0f) * 4;
    let to = packet.bytes(16)?;
    is_query(packet, Addr::v4(to), udp).then_some(())?;
    packet.redirect_v4(udp, Addr::LOOPBACK_V4.to_v4_be().to_ne_bytes())
}

#[inline(always)]
fn ipv6(packet: &Packet) -> Option<()> {
    if u32::from(packet.bytes::<1>(6)?[0]) != IPPROTO_UDP {
        return None;
    }
    let to = packet.bytes(24)?;
    is_query(packet, Addr::v6(to), IPV6_HLEN).then_some(())?;
    packet.redirect_v6(IPV6_HLEN, Addr::loopback_of(Family::V6).octets())
}

/// Whether a datagram goes to what names a server, at the sidecar's port.
#[inline(always)]
fn is_query(packet: &Packet, to: Addr, udp: u32) -> bool {
    let port = |[high, low]: [u8; 2]| u32::from(u16::from_be_bytes([high, low]));
    is_dedicated(to) && packet.bytes(udp + 2).map(port) == Some(DNS_CAPTURE_PORT.load())
}
