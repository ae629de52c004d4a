//! Packets that enter a pod and are for another host: those of containers and virtual machines inside the pod, and
//! those for them. sk_lookup never sees them. What the rules capture of them is marked, so that a routing rule
//! delivers it in the pod, whether the pod forwards or not; everything else goes its way.
//!
//! The socket lookup of a SYN asks the programs in sk_lookup, which decide, count and trace as for every other
//! inbound connection. No state is kept: later packets of a captured connection are those that have a socket.

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    macros::classifier,
    programs::TcContext,
};
use sidetrack_common::forward::{MARK, Probe};

use sidetrack_ebpf::{
    ctx::skb::{ETH_P_8021AD, ETH_P_8021Q, Owner, Packet},
    probe,
};

use crate::tcp::{ACK, SYN, Tcp, tcp};

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
    let tcp = match packet.protocol() {
        // The IP layer sees what is behind the inner tag, this program does not.
        ETH_P_8021Q | ETH_P_8021AD if packet.has_priority_tag() => return Some(Action::Drop),
        _ => tcp(packet)?,
    };
    let Tcp::At(offset, mut tuple) = tcp else {
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
    let owner = packet.look_up(&mut tuple, || {
        let answer = probe::probe();
        answer == Probe::Redirected as u32 || answer == Probe::RedirectedOwn as u32
    });
    let answer = probe::probe();
    probe::set_probe(Probe::NotAsked);
    Some(match owner {
        Owner::Connection => Action::Deliver,
        _ if answer == Probe::Redirected as u32 => Action::Deliver,
        _ if answer == Probe::Refused as u32 => Action::Refuse(offset),
        // Whatever translates its destination, with the mark it stays in the pod and is decided there.
        Owner::Listener { is_assigned: false } if answer == Probe::RedirectedOwn as u32 => {
            Action::Deliver
        }
        Owner::Listener { .. } | Owner::Nobody => Action::Continue,
    })
}
