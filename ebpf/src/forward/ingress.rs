//! Packets that enter a pod and are for another host: those of containers and virtual machines inside the pod, and
//! those for them. sk_lookup never sees them. What the rules capture of them is marked, so that a routing rule
//! delivers it in the pod, whether the pod forwards or not; everything else goes its way.
//!
//! The socket lookup of a SYN asks the programs in sk_lookup, which decide, count and trace as for every other
//! inbound connection. No state is kept: later packets of a captured connection are those that have a socket.

use core::ops::RangeInclusive;

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    macros::classifier,
    programs::TcContext,
};
use sidetrack_common::forward::{MARK, PORT_SHIFT, Probe};

use sidetrack_ebpf::{
    ctx::{
        IPPROTO_TCP,
        skb::{
            CURRENT_NETNS, ETH_P_8021AD, ETH_P_8021Q, ETH_P_IP, ETH_P_IPV6, Owner, Packet, Tuple,
        },
    },
    probe,
};

/// The answer in the row of the probe, without a port.
const ANSWER: u32 = (1 << PORT_SHIFT) - 1;

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

/// What happens to a packet.
enum Action {
    /// Whatever the pod does without this program.
    Continue,
    /// It is delivered in the pod.
    Deliver,
    /// It is dropped.
    Drop,
    /// Its sender gets a reset; TCP begins so many bytes after the IP header does.
    Refuse(u32),
}

/// Where TCP begins in a packet, and its addresses.
pub enum Tcp {
    At(u32, Tuple),
    /// It is a part of a packet, behind more headers than are looked at, or cannot be read: the pod's own IP layer,
    /// which puts it together, decides.
    Unclear,
}

/// A packet enters by one of the pod's interfaces.
#[classifier]
pub fn st_forward(ctx: TcContext) -> i32 {
    let packet = Packet::new(&ctx);
    match action(&packet).unwrap_or(Action::Continue) {
        Action::Continue => {}
        Action::Deliver => packet.set_mark(MARK),
        Action::Drop => return TC_ACT_SHOT,
        // Delivered without a listener it would get none: IPv4 sends a reset from addresses of the pod only.
        Action::Refuse(offset) => return packet.reset(offset).unwrap_or(TC_ACT_SHOT),
    }
    TC_ACT_UNSPEC
}

/// `None` for what is no TCP.
#[inline(always)]
fn action(packet: &Packet) -> Option<Action> {
    if !packet.is_received() {
        return None;
    }
    // The IP layer sees what is behind the inner tag, this program does not.
    if matches!(packet.protocol(), ETH_P_8021Q | ETH_P_8021AD) && packet.has_priority_tag() {
        return Some(Action::Drop);
    }
    let Tcp::At(offset, mut tuple) = tcp(packet)? else {
        return Some(Action::Deliver);
    };
    let Some(header) = packet.bytes::<14>(offset) else {
        return Some(Action::Deliver);
    };
    tuple.set_ports(&header);
    let begins = header[13] & (SYN | ACK) == SYN;
    probe::set_probe(if begins {
        Probe::Syn
    } else {
        Probe::Established
    });
    let owner = packet.look_up(&mut tuple, CURRENT_NETNS, || {
        let answer = probe::probe();
        answer == Probe::Redirected as u32 || answer == Probe::RedirectedOwn as u32
    });
    let answer = probe::probe();
    probe::set_probe(Probe::NotAsked);
    if answer & ANSWER == Probe::AtPort as u32 {
        return Some(at_port(
            packet,
            tuple,
            (answer >> PORT_SHIFT) as u16,
            offset,
        ));
    }
    Some(match owner {
        Owner::Connection { .. } => Action::Deliver,
        _ if answer == Probe::Redirected as u32 => Action::Deliver,
        _ if answer == Probe::Refused as u32 => Action::Refuse(offset),
        // Whatever translates its destination, with the mark it stays in the pod and is decided there.
        Owner::Listener { is_assigned: false } if answer == Probe::RedirectedOwn as u32 => {
            Action::Deliver
        }
        Owner::Listener { .. } | Owner::NoSocket => Action::Continue,
    })
}

/// Gives a SYN to the listener on a capture port that sk_lookup cannot choose.
#[inline(always)]
fn at_port(packet: &Packet, tuple: Tuple, port: u16, offset: u32) -> Action {
    probe::set_probe(Probe::Established);
    let owner = packet.look_up(&mut tuple.to_port(port), CURRENT_NETNS, || true);
    if matches!(owner, Owner::Listener { is_assigned: true }) {
        probe::set_probe(Probe::NotAsked);
        return Action::Deliver;
    }
    probe::set_probe(Probe::NotServed);
    let _ = packet.look_up(&mut tuple.to_port(tuple.port()), CURRENT_NETNS, || false);
    probe::set_probe(Probe::NotAsked);
    Action::Refuse(offset)
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
