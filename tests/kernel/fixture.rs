//! The network most tests share: an enrolled pod with a sidecar and an app, and an outside.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail, ensure};
use lab::{
    actor::Actor,
    agent::Agent,
    network::{Lab, PodNet, manifest},
    protocol::{Connected, Dial, Identity},
    sidecar,
};

pub use lab::agent::nothing_is_left;

/// A service address outside the pod, per family.
pub const VIP: [&str; 2] = ["10.109.118.31", "fd99::31"];
/// The pod's addresses.
pub const POD: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// The pod's addresses on its second interface.
pub const SECOND: [&str; 2] = ["10.78.0.2", "fd78::2"];

/// The shared network. Fields drop in order: processes before what they run in.
#[derive(Debug)]
pub struct World {
    /// In the pod: listens as sidecar and app, and dials as anyone.
    _sidecar: Actor,
    /// In the pod, only dials.
    pub client: Actor,
    /// Outside, serves 80, 8080 and 15001.
    pub outside: Actor,
    /// The agent.
    pub agent: Agent,
    /// The pod.
    pub pod: PodNet,
    _lab: Lab,
}

impl World {
    /// Builds it.
    pub fn new() -> Result<Self> {
        let mut lab = Lab::new()?;
        for vip in VIP {
            lab.add_outside(vip)?;
        }
        let pod = lab.pod("app", 2)?;
        let outside = lab.outside();
        pod.furnish(&outside)?;
        let outside = outside.actor()?;
        for port in [80, 8080, 15001] {
            sidecar::listen(&outside, &Identity::of(0), port)?;
        }
        lab.write_manifest("app", &manifest("app", &pod, &[]))?;
        let agent = Agent::start(lab.places())?;
        agent.places.wait_enrolled("test/app")?;
        Ok(Self {
            _sidecar: sidecar::start(&pod, &[22, 80, 8080])?,
            client: pod.actor()?,
            outside,
            agent,
            pod,
            _lab: lab,
        })
    }

    /// Dials from inside the pod.
    pub fn dial(&self, dial: Dial) -> Result<Result<Connected, i32>> {
        self.client.dial(dial)
    }
}

/// An address from text.
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address in a test")
}

/// Address and port from text.
pub fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(address), port)
}

/// SO_ORIGINAL_DST of the right family.
pub fn original(names: &lab::protocol::Names, of: SocketAddr) -> Result<SocketAddr, i32> {
    if of.ip().to_canonical().is_ipv4() {
        names.original_v4
    } else {
        names.original_v6
    }
}

/// Where a connection is expected to arrive.
#[derive(Clone, Copy, Debug)]
pub enum Arrives {
    /// At the sidecar's capture port, redirected.
    Sidecar(u16),
    /// Where it was sent.
    Untouched,
    /// Nowhere.
    Fails(i32),
}

/// Checks everything both ends of a connection from a pod can see. `source` is the address the
/// connection is expected to come from, `dialed` the address it was meant for.
pub fn check(
    result: &Result<Connected, i32>,
    arrives: Arrives,
    source: &str,
    dialed: SocketAddr,
) -> Result<()> {
    let connected = match (result, arrives) {
        (Err(errno), Arrives::Fails(wanted)) if *errno == wanted => return Ok(()),
        (Ok(connected), Arrives::Sidecar(_) | Arrives::Untouched) => connected,
        _ => bail!("expected {arrives:?}, got {result:?}"),
    };
    let (client, server) = (&connected.client, &connected.server);
    let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    ensure!(
        client.local.ip().to_canonical() == ip(source),
        "source: {client:?}"
    );
    ensure!(
        canonical(client.local) == canonical(server.peer),
        "the ends differ: {connected:?}"
    );
    ensure!(
        canonical(client.peer) == dialed,
        "the client's peer: {client:?}"
    );
    ensure!(
        original(client, dialed) == Ok(dialed),
        "the client's original destination: {client:?}"
    );
    ensure!(
        original(server, dialed) == Ok(dialed),
        "the server's original destination: {server:?}"
    );
    match arrives {
        Arrives::Sidecar(port) => {
            let loopback = if dialed.is_ipv4() { "127.0.0.1" } else { "::1" };
            ensure!(
                connected.accepted_by == port,
                "accepted by {}",
                connected.accepted_by
            );
            ensure!(
                server.local == at(loopback, port),
                "the sidecar's address: {server:?}"
            );
        }
        Arrives::Untouched => {
            ensure!(
                connected.accepted_by == dialed.port(),
                "accepted by {}",
                connected.accepted_by
            );
            ensure!(server.local == dialed, "the server's address: {server:?}");
        }
        Arrives::Fails(_) => {}
    }
    Ok(())
}
