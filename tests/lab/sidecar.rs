//! A stand-in for the sidecar: an actor that listens, as the proxy, where Envoy would.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;

use crate::{
    actor::Actor,
    network::PodNet,
    protocol::{APP, Listen, PROXY},
};

/// Ports on which the proxy itself is reached.
pub const SIDECAR_PORTS: [u16; 6] = [15001, 15006, 15008, 15020, 15021, 15090];

/// Opens the sidecar's ports, and the app's, for both families.
pub fn start(pod: &PodNet, app_ports: &[u16]) -> Result<Actor> {
    start_workers(pod, app_ports, 1)
}

/// The same with so many workers, each of which has sockets of its own (SO_REUSEPORT), as Envoy's have.
pub fn start_workers(pod: &PodNet, app_ports: &[u16], workers: usize) -> Result<Actor> {
    let actor = pod.actor()?;
    for port in SIDECAR_PORTS {
        listen_by(&actor, &PROXY, port, (workers, false))?;
    }
    for port in app_ports {
        listen(&actor, &APP, *port)?;
    }
    Ok(actor)
}

/// Listens on a port of both families.
pub fn listen(actor: &Actor, owner: &crate::protocol::Identity, port: u16) -> Result<[usize; 2]> {
    listen_by(actor, owner, port, (1, false))
}

/// The same on sockets with IP_TRANSPARENT, as a sidecar in mode TPROXY does.
pub fn listen_transparently(
    actor: &Actor,
    owner: &crate::protocol::Identity,
    port: u16,
) -> Result<[usize; 2]> {
    listen_by(actor, owner, port, (1, true))
}

fn listen_by(
    actor: &Actor,
    owner: &crate::protocol::Identity,
    port: u16,
    (sockets, transparent): (usize, bool),
) -> Result<[usize; 2]> {
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let mut ids = [0; 2];
    for (id, address) in ids.iter_mut().zip(any) {
        *id = actor.listen_group(Listen {
            address: SocketAddr::new(address, port),
            owner: owner.clone(),
            sockets,
            v6_only: true,
            transparent,
            mptcp: false,
        })?;
    }
    Ok(ids)
}
