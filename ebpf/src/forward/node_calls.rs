//! Connections that the node itself makes to a pod, such as kubelet's probes: they reach the application, whatever the
//! rules capture.
//!
//! A packet says of itself that it is from the node, and anyone can write that. So the node's network is asked whether it
//! has a socket that is connecting from there to here. For a process that forges its address it has none with these
//! ports.

use aya_ebpf::{
    Global,
    bindings::{TC_ACT_OK, TC_ACT_SHOT, TC_ACT_UNSPEC},
    macros::classifier,
    programs::TcContext,
};
use sidetrack_common::forward::Probe;
use sidetrack_ebpf::{
    ctx::skb::{CURRENT_NETNS, Owner, Packet},
    probe,
};

use crate::ingress::{ACK, SYN, Tcp, tcp};

/// What the pod's network calls the node's.
#[unsafe(no_mangle)]
static NODE_NETNS_ID: Global<u32> = Global::new(0);

/// A packet enters by one of the pod's interfaces.
#[classifier]
pub fn st_node_calls(ctx: TcContext) -> i32 {
    let packet = Packet::new(&ctx);
    call(&packet).unwrap_or(TC_ACT_UNSPEC)
}

/// `None` for what is no SYN of the node's.
#[inline(always)]
fn call(packet: &Packet) -> Option<i32> {
    if !packet.is_received() {
        return None;
    }
    let Tcp::At(offset, mut tuple) = tcp(packet)? else {
        return None;
    };
    let header = packet.bytes::<14>(offset)?;
    if header[13] & (SYN | ACK) != SYN {
        return None;
    }
    tuple.set_ports(&header);
    let node = NODE_NETNS_ID.load().into();
    let sender = packet.look_up(&mut tuple.reversed(), node, || false);
    if !matches!(sender, Owner::Connection { begins: true }) {
        return None;
    }
    // sk_lookup leaves this lookup alone.
    probe::set_probe(Probe::Established);
    let owner = packet.look_up(&mut tuple, CURRENT_NETNS, || true);
    probe::set_probe(Probe::NotAsked);
    Some(match owner {
        // No other program of the interface: the one for forwarded packets would give it to the proxy.
        Owner::Connection { .. } | Owner::Listener { is_assigned: true } => TC_ACT_OK,
        // The proxy must not answer for the application.
        Owner::NoSocket | Owner::Listener { is_assigned: false } => {
            packet.reset(offset).unwrap_or(TC_ACT_SHOT)
        }
    })
}
