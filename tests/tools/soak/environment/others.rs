//! What dials beside the pods' apps and sidecars.

use std::net::SocketAddr;

use anyhow::Result;
use lab::{
    machine::{MACHINE, behind, set_forwarding},
    protocol::{Identity, ROOT},
};

use super::{Environment, FORWARDING, TRANSPARENT, dialers};
use crate::{
    helpers::Dialer,
    targets::{CLIENT, Kind, Known, MARK, VIP6, WEB},
    wire::Target,
};

/// A sidecar in mode TPROXY, which takes a client's address: it needs privileges.
const TRANSPARENT_PROXY: Identity = Identity::with_gid(0, 1337);

impl Environment {
    /// A machine behind a pod, which dials a service. By IPv4 it would have to wait for an agent, which makes the
    /// sidecar's listeners transparent.
    pub(super) fn machine(&self) -> Result<(Dialer, Known)> {
        let pod = &self.pods[usize::from(FORWARDING)];
        let machine = {
            let mut lab = self.lab.lock();
            behind(&mut lab, &pod.net, "tap0")?
        };
        set_forwarding(&pod.net, true)?;
        let known = Known {
            target: Target::new(SocketAddr::new(VIP6.parse()?, WEB)),
            kind: Kind::Through,
            client: Some(pod.number),
            server: None,
            source: MACHINE[1].parse()?,
        };
        let work = dialers(1, self.seed + 2);
        let dialer = Dialer::start(&machine, &ROOT, work, &self.account)?;
        Ok((dialer, known))
    }

    /// The sidecar of the pod in mode TPROXY, which calls its app.
    pub(super) fn transparent_proxy(&self) -> Result<(Dialer, Known)> {
        let pod = &self.pods[usize::from(TRANSPARENT)];
        let known = Known {
            target: Target {
                bind: Some(CLIENT),
                mark: Some(MARK),
                ..Target::new(SocketAddr::new(pod.net.v4, WEB))
            },
            kind: Kind::ProxyAsClient,
            client: Some(pod.number),
            server: None,
            source: CLIENT,
        };
        let work = dialers(1, self.seed + 3);
        let dialer = Dialer::start(&pod.net, &TRANSPARENT_PROXY, work, &self.account)?;
        Ok((dialer, known))
    }
}
