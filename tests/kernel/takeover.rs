//! A running pod whose iptables rules redirect is enrolled, opted out and enrolled again, under load.

use anyhow::{Result, anyhow, ensure};
use lab::{
    command::run_words,
    injected::with_istio_init,
    network::Manifest,
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
};
use std::fs;

use crate::fixture::{POD, PodFixture, VIP, at, original};

/// Connections under the rules, which connection tracking remembers for two minutes: a quarter of the ports that
/// the kernel gives to clients.
const BEFORE: usize = 8_000;
const AFTER: usize = 1_500;
const AT_ONCE: usize = 500;

pub fn load_rules(fixture: &PodFixture, manifest: &Manifest) -> Result<()> {
    let path = fixture.lab.dir().join("rules.json");
    fs::write(&path, manifest.to_string())?;
    let manifest = path.to_string_lossy();
    for (restore, six) in [
        ("iptables-restore", None),
        ("ip6tables-restore", Some("-6")),
    ] {
        let words = ["rules", "--manifest", &manifest, "--format", "iptables"];
        let words: Vec<&str> = words.into_iter().chain(six).collect();
        let rules = fixture.agent.places.output(&words)?;
        ensure!(rules.status.success(), "{rules:?}");
        let file = fixture.lab.dir().join(restore);
        fs::write(&file, rules.stdout)?;
        let file = file.to_string_lossy();
        run_words(&["ip", "netns", "exec", &fixture.pod.netns, restore, &file])?;
    }
    Ok(())
}

/// Every connection reaches the sidecar, which learns where it was to go.
fn dial(fixture: &PodFixture, family: usize, count: usize) -> Result<()> {
    let to = at(VIP[family], 80);
    for _ in 0..count / AT_ONCE {
        let dials = vec![Dial::new(&APP, to); AT_ONCE];
        for (number, result) in fixture.client.dial_all(dials)?.into_iter().enumerate() {
            let connected = result.map_err(|errno| anyhow!("number {number}: errno {errno}"))?;
            let original = if family == 0 {
                &connected.server.original_v4
            } else {
                &connected.server.original_v6
            };
            ensure!(
                connected.accepted_by == 15001 && *original == Ok(to),
                "number {number}: {connected:?}"
            );
            ensure!(connected.client.peer == to, "{connected:?}");
            ensure!(
                connected.client.local.ip() == at(POD[family], 0).ip(),
                "{connected:?}"
            );
        }
    }
    Ok(())
}

kernel_test!(of_a_pod_with_istio_init_under_load);
fn of_a_pod_with_istio_init_under_load() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    fixture.outside.listen(&ROOT, at("::", 80))?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    let manifest = with_istio_init(&fixture.pod, &[], &[]);
    load_rules(&fixture, &manifest)?;
    for family in [0, 1] {
        dial(&fixture, family, BEFORE)?;
    }
    for _ in 0..2 {
        fixture.lab.enroll_manifest("app", &manifest)?;
        for family in [0, 1] {
            dial(&fixture, family, AFTER)?;
        }
        fixture.lab.release("app")?;
        for family in [0, 1] {
            dial(&fixture, family, AT_ONCE)?;
        }
    }
    Ok(())
}

kernel_test!(the_proxy_calls_its_own_pod_under_rules);
/// The rules redirect what goes to the target of such a call, as they redirect what goes to the pod's address. The first
/// call learns that.
fn the_proxy_calls_its_own_pod_under_rules() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let manifest = with_istio_init(&fixture.pod, &[], &[]).dual_stack(true);
    load_rules(&fixture, &manifest)?;
    fixture.lab.enroll_manifest("app", &manifest)?;
    for family in [0, 1] {
        let to = at(POD[family], 80);
        for call in 0..3 {
            let result = fixture.client.dial(Dial::new(&PROXY, to))?;
            let connected = result.map_err(|errno| anyhow!("call {call}: errno {errno}"))?;
            ensure!(
                connected.accepted_by == 15006
                    && original(&connected.server, to) == Ok(to)
                    && original(&connected.client, to) == Ok(to)
                    && connected.client.peer == to
                    && connected.client.local.ip() == to.ip(),
                "call {call}: {connected:?}"
            );
            let is_named = connected.server.peer == connected.client.local;
            ensure!(
                is_named || family == 0 && call == 0,
                "call {call}: {connected:?}"
            );
        }
    }
    let maps = fixture.agent.places.maps()?;
    let counts = maps.handshakes_by_reason()?;
    let own_pod = counts.iter().find(|(reason, _)| *reason == "own-pod");
    ensure!(own_pod.is_some_and(|(_, count)| *count == 5), "{counts:?}");
    ensure!(maps.handshakes.keys()?.is_empty(), "handshakes are over");
    Ok(())
}
