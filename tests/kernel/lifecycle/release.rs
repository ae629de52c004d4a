//! A pod that leaves, under traffic, leaves nothing behind in any map.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, NOT_OF_PODS, is},
    network::{Manifest, PodNet, manifest},
    product::{LABEL, PINNED},
    protocol::{APP, Dial, Listen, PROXY, ROOT},
    sidecar,
    wait::eventually,
};
use nix::sys::signal::Signal;
use sidetrack_common::{count::RuleCounts, names};

use crate::fixture::{POD, PodFixture, VIP, at, nothing_remains};

/// Empty between two connections.
const MOMENTARY: [&str; 2] = [names::HANDSHAKES, names::HANDSHAKE_COUNT];

/// Pods that together have every kind of row: one with every list, an interface that a rule names, a
/// sidecar, and connections; and one whose sidecar has not listened yet.
/// Fields drop in order: processes before what they run in.
struct Pods {
    _sidecar: Actor,
    _validation: Actor,
    waiting: PodNet,
    fixture: PodFixture,
}

impl Pods {
    fn new() -> Result<Self> {
        let mut fixture = PodFixture::new()?;
        let waiting = fixture.lab.pod("waiting", 3)?;
        let pod = &fixture.pod;
        pod.ip("link add eth1 type veth peer name eth1-end")?;
        pod.ip("link set eth1 up")?;
        pod.ip("route add unreachable 10.9.9.9")?;
        pod.ip("route add 10.9.8.0/24 dev eth1 table 100")?;
        pod.ip("rule add from 10.9.7.7 lookup 100")?;
        // Where istio-validation listens; it is not the sidecar.
        let validation = waiting.actor()?;
        validation.listen_group(Listen {
            address: at("127.0.0.1", 15001),
            owner: PROXY,
            sockets: 1,
            transparent: false,
            mptcp: false,
            v6_only: true,
        })?;
        let pods = Self {
            _sidecar: sidecar::start(pod, &[80])?,
            _validation: validation,
            waiting,
            fixture,
        };
        for (name, text) in pods.manifests() {
            pods.fixture.lab.write_manifest(name, &text)?;
            let full = format!("test/{name}");
            pods.fixture.agent.places.wait_enrolled(&full)?;
        }
        // As of one that has no room for more counters.
        let pod = pods.fixture.agent.places.pod("test/app")?;
        let cookie = pod.and_then(|pod| pod["netns"]["cookie"].as_u64());
        let maps = pods.fixture.agent.places.maps()?;
        let cookie = cookie.context("the pod's cookie")?;
        maps.overflow.insert(&cookie, &RuleCounts::NONE)?;
        // A connection with a handshake row: from loopback there is no target that names the destination.
        let mut by_row = Dial::new(&PROXY, at(POD[0], 80));
        by_row.source = Some(at("127.0.0.1", 0));
        pods.fixture.client.dial(by_row)?.ok();
        // One that is refused.
        pods.fixture
            .client
            .dial(Dial::new(&APP, at("10.9.9.9", 80)))?
            .err();
        Ok(pods)
    }

    fn manifests(&self) -> [(&'static str, Manifest); 2] {
        let istio = |key: &str| format!("traffic.sidecar.istio.io/{key}");
        let text = manifest(
            "app",
            &self.fixture.pod,
            &[
                (&istio("excludeInterfaces"), "eth1"),
                (&istio("includeOutboundIPRanges"), "10.0.0.0/8"),
                (&istio("excludeOutboundPorts"), "53"),
            ],
        )
        .with_variable("ISTIO_OUTBOUND_OWNER_GROUPS", "1000");
        let passes = [("sidetrack.dev/before-sidecar", "passthrough")];
        [
            ("app", text),
            ("waiting", manifest("waiting", &self.waiting, &passes)),
        ]
    }

    /// Every map has rows of these pods.
    fn have_every_kind_of_row(&self) -> Result<()> {
        for map in PINNED {
            if NOT_OF_PODS.contains(map) || MOMENTARY.contains(map) {
                continue;
            }
            let rows = self.fixture.agent.places.map(map)?;
            ensure!(!rows.is_empty(), "{map} has no row: nothing could remain");
        }
        Ok(())
    }

    /// Lets both pods leave while the first connects and is connected to.
    fn leave_by(&self, leave: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let done = AtomicBool::new(false);
        let traffic = |from: &Actor, dial: &Dial, captured: u16| -> Result<()> {
            while !done.load(Ordering::Relaxed) {
                for result in from.dial_all(vec![dial.clone(); 10])? {
                    let connected =
                        result.map_err(|errno| anyhow!("to {captured}: errno {errno}"))?;
                    let by = connected.accepted_by;
                    ensure!(by == captured || by == 80, "{connected:?}");
                }
            }
            Ok(())
        };
        let fixture = &self.fixture;
        let outbound = Dial::new(&APP, at(VIP[0], 80));
        let inbound = Dial::new(&ROOT, at(POD[0], 80));
        thread::scope(|scope| {
            let traffic = &traffic;
            let threads = [
                scope.spawn(|| traffic(&fixture.client, &outbound, 15001)),
                scope.spawn(|| traffic(&fixture.outside, &inbound, 15006)),
            ];
            let outcome = self
                .wait_counted()
                .and_then(|()| self.have_every_kind_of_row())
                .and_then(|()| leave(self))
                // Still under traffic, which is untouched now.
                .and_then(|()| nothing_remains(&fixture.agent.places));
            done.store(true, Ordering::Relaxed);
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| anyhow!("the traffic panicked"))??;
            }
            outcome
        })?;
        ensure!(
            fixture.accepted_by()? == 80,
            "its connections are untouched"
        );
        nothing_remains(&fixture.agent.places)
    }

    /// Waits until connections of both directions have been counted.
    fn wait_counted(&self) -> Result<()> {
        eventually(Duration::from_secs(5), || {
            ensure!(
                self.fixture.agent.places.map("COUNT_BY_RULE")?.len() >= 2,
                "no traffic"
            );
            Ok(())
        })?;
        Ok(())
    }
}

kernel_test!(removed_manifests_leave_nothing);
fn removed_manifests_leave_nothing() -> Result<()> {
    Pods::new()?.leave_by(|pods| {
        for (name, _) in pods.manifests() {
            pods.fixture.lab.remove_manifest(name)?;
        }
        Ok(())
    })
}

kernel_test!(opting_out_leaves_nothing);
fn opting_out_leaves_nothing() -> Result<()> {
    Pods::new()?.leave_by(|pods| {
        for (name, text) in pods.manifests() {
            let text = text.labeled(LABEL, "disabled");
            pods.fixture.lab.write_manifest(name, &text)?;
        }
        for (name, _) in pods.manifests() {
            let full = format!("test/{name}");
            pods.fixture
                .agent
                .places
                .wait_pod(&full, is("skipped", ""))?;
        }
        Ok(())
    })
}

kernel_test!(accepted_connections_have_their_destination_while_the_pod_leaves);
/// A sidecar that has accepted a connection asks for its original destination a moment later. Envoy refuses the
/// request if there is no answer.
fn accepted_connections_have_their_destination_while_the_pod_leaves() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let outside = fixture.lab.outside().actor()?;
    let places = &fixture.agent.places;
    let enrolled = manifest("app", &fixture.pod, &[]);
    fixture.lab.enroll_manifest("app", &enrolled)?;
    for address in POD {
        let held = outside.hold(Dial::new(&ROOT, at(address, 80)))?;
        let held = held.map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(held.accepted_by == 15006, "{held:?}");
    }
    let out = enrolled.labeled(LABEL, "disabled");
    fixture.lab.write_manifest("app", &out)?;
    places.wait_rows(names::POD_BY_NETNS, 0)?;
    for (names, address) in outside.reread_names()?.into_iter().zip(POD) {
        let names = names.map_err(|errno| anyhow!("errno {errno}"))?;
        let to = at(address, 80);
        let server = &names.server;
        let original = [&server.original_v4, &server.original_v6];
        ensure!(original.contains(&&Ok(to)), "{names:?}");
    }
    // Then nothing of it remains.
    places.wait_rows(names::DESTINATIONS_BY_POD, 0)
}

kernel_test!(a_pod_that_is_opted_out_while_no_agent_runs);
/// Its open connections stay what they are, and nothing stays in its namespace.
fn a_pod_that_is_opted_out_while_no_agent_runs() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let before = fixture.pod.ip("addr show dev lo")?;
    let enrolled = manifest("app", &fixture.pod, &[]);
    fixture.lab.enroll_manifest("app", &enrolled)?;
    for address in VIP {
        let held = fixture.client.hold(Dial::new(&APP, at(address, 80)))?;
        let held = held.map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(held.accepted_by == 15001, "{held:?}");
    }
    fixture.agent.end(Signal::SIGTERM)?;
    let out = enrolled.labeled(LABEL, "disabled");
    fixture.lab.write_manifest("app", &out)?;
    fixture.agent = Agent::start(&fixture.agent.places)?;
    let places = &fixture.agent.places;
    places.wait_rows(names::POD_BY_NETNS, 0)?;
    // Rows that no namespace was known for went after two seconds.
    sleep(Duration::from_secs(4));
    for (names, address) in fixture.client.reread_names()?.into_iter().zip(VIP) {
        let names = names.map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(names.client.peer == at(address, 80), "{names:?}");
    }
    fixture.client = fixture.pod.actor()?;
    places.wait_rows(names::DESTINATIONS_BY_POD, 0)?;
    let after = fixture.pod.ip("addr show dev lo")?;
    ensure!(after == before, "{after}");
    Ok(())
}

kernel_test!(connections_whose_last_packets_are_lost_keep_nothing);
/// A container runtime takes a pod's loopback interface down. Sockets that are closed then try for minutes to say so.
fn connections_whose_last_packets_are_lost_keep_nothing() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let pod = &fixture.pod;
    let proxy = sidecar::start(pod, &[80])?;
    let enrolled = manifest("app", pod, &[]);
    fixture.lab.enroll_manifest("app", &enrolled)?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP[0], 80)))?;
    let held = held.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(held.accepted_by == 15001, "{held:?}");
    pod.ip("link set lo down")?;
    drop(proxy);
    fixture.client = pod.actor()?;
    let out = enrolled.labeled(LABEL, "disabled");
    fixture.lab.write_manifest("app", &out)?;
    let places = &fixture.agent.places;
    places.wait_rows(names::DESTINATIONS_BY_POD, 0)
}
