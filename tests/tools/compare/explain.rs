//! What `sidetrack explain` predicts for a connection, against what the kernel did with it.

use std::{net::IpAddr, sync::Arc};

use anyhow::{Context as _, Result};
use lab::product::{ListTables, MapRoutes, Maps, Pins, Policy};
use lab::{agent::Places, machine::MACHINE, udp::SendUdp};
use sidetrack_common::{
    addr::Addr,
    decide::{self, Decision, Inbound, Outbound, Owner, Verdict},
    route_rules::RoutedSocket,
};

use crate::{
    compare::Outcome,
    matrix::{Case, Origin, ip},
    pair::NEIGHBOR,
};

/// The enrolled pod as explain sees it.
pub struct Explainer {
    policy: Policy,
    netns: u64,
    ipv6: bool,
    maps: Maps,
}

impl Explainer {
    /// Queries the agent and opens the kernel's maps, as the command does.
    pub fn new(places: &Places) -> Result<Self> {
        let pod = places.whole_pod("test/app")?;
        Ok(Self {
            policy: Arc::unwrap_or_clone(pod.policy.context("the pod's policy")?),
            netns: pod.netns.context("the pod's namespace")?.cookie,
            ipv6: pod.ipv6,
            maps: Maps::open(&Pins::new(&places.bpffs)?)?,
        })
    }

    fn captures(&self, destination: IpAddr) -> bool {
        self.ipv6 || destination.is_ipv4()
    }

    fn tables(&self, socket: RoutedSocket) -> ListTables<'_, MapRoutes<'_>> {
        ListTables {
            policy: &self.policy,
            routes: MapRoutes {
                netns: self.netns,
                socket,
                maps: &self.maps,
            },
            before_sidecar: false,
        }
    }

    /// The verdict for a datagram, and the rule behind it.
    pub fn datagram(&self, send: &SendUdp) -> Decision {
        let source = send.source.map(|source| source.ip().to_canonical());
        let destination = send.destination.ip().to_canonical();
        let conn = Outbound {
            owner: Owner {
                uid: send.sender.uid,
                gid: send.sender.gid,
            },
            source: source.map_or(Addr::UNSPECIFIED, Addr::from),
            destination: destination.into(),
            port: send.destination.port(),
            mark: 0,
            routing_header: false,
            captured_family: self.captures(destination),
        };
        let tables = self.tables(RoutedSocket::of(&conn));
        decide::udp(&self.policy.compile().row(), &conn, &tables)
    }

    /// The verdict for a connection.
    pub fn verdict(&self, case: &Case) -> Verdict {
        self.decision(case).verdict
    }

    /// The verdict and the rule behind it.
    pub fn decision(&self, case: &Case) -> Decision {
        let row = self.policy.compile().row();
        let dial = &case.dial;
        let destination = Addr::from(dial.destination.ip());
        let port = dial.destination.port();
        let Some(arrives_by) = case.arrives_by else {
            let source = dial
                .source
                .map_or(Addr::UNSPECIFIED, |source| source.ip().into());
            let mut conn = Outbound {
                owner: Owner {
                    uid: dial.creator.uid,
                    gid: dial.creator.gid,
                },
                source,
                destination,
                port,
                mark: dial.mark,
                routing_header: dial.segment.is_some(),
                captured_family: self.captures(dial.destination.ip()),
            };
            if let Some(first) = dial.first.filter(|_| dial.dissolve) {
                let first = Outbound {
                    destination: first.ip().into(),
                    port: first.port(),
                    ..conn
                };
                let tables = self.tables(RoutedSocket::of(&first));
                if decide::outbound(&row, &first, &tables).verdict == Verdict::Mark {
                    conn.mark = row.transparent_mark;
                }
            }
            let tables = self.tables(RoutedSocket::of(&conn));
            return decide::outbound(&row, &conn, &tables);
        };
        let is_v6 = dial.destination.is_ipv6();
        let [v4, v6] = match case.from {
            Origin::Machine => MACHINE,
            Origin::Neighbor => NEIGHBOR,
            Origin::Pod | Origin::Outside if dial.device.is_some() => ["10.78.0.254", "fd78::fe"],
            Origin::Pod | Origin::Outside => ["10.77.0.254", "fd77::fe"],
        };
        let syn = Inbound {
            source: ip(if is_v6 { v6 } else { v4 }).into(),
            destination,
            port,
            iface: self.policy.iface(arrives_by),
            captured_family: self.captures(dial.destination.ip()),
        };
        decide::inbound(&row, &syn, &self.tables(RoutedSocket::PLAIN))
    }
}

/// Whether the kernel did what the verdict says.
pub fn agrees(case: &Case, verdict: Verdict, outcome: &Outcome) -> bool {
    match (verdict, outcome) {
        (Verdict::Fail { errno }, Outcome::Fails(seen)) => errno == *seen,
        (Verdict::Redirect { port, .. }, Outcome::Connects(seen)) => {
            seen.accepted_by == port
                && (case.arrives_by.is_some()
                    || seen.server.local.ip().to_canonical().is_loopback())
        }
        // The kernel does not take the binding off for those without CAP_NET_RAW.
        (Verdict::Redirect { .. }, Outcome::Fails(_)) => case.dial.device.is_some(),
        (Verdict::Assign { port, .. }, Outcome::Connects(seen)) => seen.accepted_by == port,
        (Verdict::Untouched | Verdict::BindToLoopback | Verdict::Mark, Outcome::Connects(seen)) => {
            seen.accepted_by == case.dial.destination.port()
        }
        // Without an interface the kernel makes no connection to a link-local address.
        (Verdict::Assign { .. }, Outcome::Fails(libc::EINVAL)) => {
            Addr::from(case.dial.destination.ip()).is_link_local()
        }
        // Not redirected, it failed as it would have without sidetrack.
        (Verdict::Untouched | Verdict::BindToLoopback | Verdict::Mark, Outcome::Fails(_)) => true,
        (Verdict::Fail { .. }, Outcome::Connects(_))
        | (Verdict::Assign { .. }, Outcome::Fails(_)) => false,
    }
}
