//! What `sidetrack explain` says of a connection, against what the kernel did with it.

use anyhow::{Context as _, Result};
use sidetrack::{
    bpf::{maps::Maps, pins::Pins},
    policy::Policy,
    rules::{ListTables, MapRoutes},
};
use sidetrack_common::{
    addr::Addr,
    decide::{self, Arrival, Outbound, Owner, Verdict},
    pod::IfaceRule,
};
use support::agent::Places;

use crate::{compare::Outcome, grid::Case};

/// The enrolled pod as explain sees it.
pub struct Explainer {
    policy: Policy,
    netns: u64,
    maps: Maps,
}

impl Explainer {
    /// Asks the agent and opens the kernel's maps, as the command does.
    pub fn new(places: &Places) -> Result<Self> {
        let pod = places.pod("test/app")?.context("the pod")?;
        Ok(Self {
            policy: serde_json::from_value(pod["policy"].clone()).context("the pod's policy")?,
            netns: pod["netns"]["cookie"]
                .as_u64()
                .context("the pod's cookie")?,
            maps: Maps::open(&Pins::new(&places.bpffs)?)?,
        })
    }

    /// The verdict for a connection.
    pub fn verdict(&self, case: &Case) -> Verdict {
        let row = self.policy.compile().row();
        let tables = ListTables {
            policy: &self.policy,
            routes: MapRoutes {
                netns: self.netns,
                maps: &self.maps,
            },
        };
        let dial = &case.dial;
        let destination = Addr::from(dial.destination.ip());
        let port = dial.destination.port();
        if case.outbound {
            let source = dial
                .source
                .map_or(Addr::UNSPECIFIED, |source| source.ip().into());
            let conn = Outbound {
                owner: Owner {
                    uid: dial.creator.uid,
                    gid: dial.creator.gid,
                },
                source,
                destination,
                port,
                bound_device: u32::from(dial.device.is_some()),
                captured_family: true,
            };
            return decide::outbound(&row, &conn, &tables).verdict;
        }
        // What arrives comes from the gateway, by eth0.
        let excluded = self
            .policy
            .excluded_interfaces
            .iter()
            .any(|name| name == "eth0");
        let syn = Arrival {
            source: Addr::v4([10, 77, 0, 254]),
            destination,
            port,
            iface: if excluded {
                IfaceRule::Excluded
            } else {
                IfaceRule::Plain
            },
            captured_family: true,
        };
        decide::inbound(&row, &syn, &tables).verdict
    }
}

/// Whether the kernel did what the verdict says.
pub fn agrees(case: &Case, verdict: Verdict, outcome: &Outcome) -> bool {
    match (verdict, outcome) {
        (Verdict::Fail { errno }, Outcome::Fails(seen)) => errno == *seen,
        (Verdict::Redirect { port, .. }, Outcome::Connects(seen)) => {
            seen.accepted_by == port
                && (!case.outbound || seen.server.local.ip().to_canonical().is_loopback())
        }
        // A device that forbids lo.
        (Verdict::Redirect { .. }, Outcome::Fails(_)) => case.dial.device.is_some(),
        (Verdict::Untouched, Outcome::Connects(seen)) => {
            seen.accepted_by == case.dial.destination.port()
        }
        // Left alone, it failed as it would have without sidetrack.
        (Verdict::Untouched, Outcome::Fails(_)) => true,
        (Verdict::Fail { .. }, Outcome::Connects(_)) => false,
    }
}
