//! Every kind of list that a policy has.

use anyhow::{Result, anyhow, ensure};
use lab::{
    network::manifest,
    protocol::{APP, Dial, ROOT},
    sidecar,
};
use serde_json::Value;

use crate::fixture::{PodFixture, at};

kernel_test!(every_kind_of_list, needs INGRESS_INTERFACE);
/// The rules that the default policy has none of, each by itself.
fn every_kind_of_list() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture
        .pod
        .ip("link add eth1 type veth peer name eth1-end")?;
    fixture.pod.ip("link set eth1-end up")?;
    fixture.pod.ip("link set eth1 up")?;
    fixture
        .pod
        .ip("route add 10.109.119.0/24 dev eth1 src 10.77.0.2")?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let istio = |key: &str| format!("traffic.sidecar.istio.io/{key}");
    let inbound = |port: u16| inbound(&fixture, port);
    let enroll = |annotations: &[(&str, &str)], variables: &[(&str, &str)]| -> Result<()> {
        let before = fixture.agent.places.pod("test/app").ok().flatten();
        let before = before.map_or(Value::Null, |pod| pod["policy"].clone());
        let mut text = manifest("app", &fixture.pod, annotations);
        for (name, value) in variables {
            text = text.with_variable(name, value);
        }
        fixture.lab.write_manifest("app", &text)?;
        fixture.agent.places.wait_pod("test/app", |pod| {
            pod.is_some_and(|pod| {
                pod["state"] == "enrolled" && pod["reason"].is_null() && pod["policy"] != before
            })
        })?;
        Ok(())
    };
    // includeOutboundPorts, against includeOutboundIPRanges that hold nothing.
    enroll(&[(&istio("includeOutboundIPRanges"), "")], &[])?;
    ensure!(fixture.accepted_by()? == 80, "no range is included");
    enroll(
        &[
            (&istio("includeOutboundIPRanges"), ""),
            (&istio("includeOutboundPorts"), "80"),
        ],
        &[],
    )?;
    ensure!(fixture.accepted_by()? == 15001, "the port is included");
    // excludeInterfaces, both ways.
    enroll(&[(&istio("excludeInterfaces"), "eth1")], &[])?;
    ensure!(fixture.accepted_by()? == 15001, "eth0 is not excluded");
    let by_eth1 = fixture.dial(at("10.109.119.1", 80))?;
    ensure!(by_eth1.is_err(), "eth1 has no server: {by_eth1:?}");
    // The route is by eth1, the packets of a socket that is bound to eth0 are not.
    let mut by_eth0 = Dial::new(&APP, at("10.109.119.1", 80));
    by_eth0.device = Some("eth0".to_owned());
    let by_eth0 = fixture.client.dial(by_eth0)?;
    ensure!(by_eth0 == Err(libc::ECONNREFUSED), "{by_eth0:?}");
    enroll(&[(&istio("excludeInterfaces"), "net+,eth0+")], &[])?;
    ensure!(fixture.accepted_by()? == 80, "eth0 is excluded");
    ensure!(inbound(80)? == 80, "and what arrives there");
    let by_eth1 = fixture.dial(at("10.109.119.1", 80))?;
    ensure!(
        by_eth1.is_ok_and(|by_eth1| by_eth1.accepted_by == 15001),
        "eth1 is not"
    );
    // includeInboundPorts: none.
    enroll(&[(&istio("includeInboundPorts"), "")], &[])?;
    ensure!(inbound(80)? == 80, "inbound capture is off");
    // Owner groups.
    const GROUPS: &str = "ISTIO_OUTBOUND_OWNER_GROUPS";
    const EXCLUDED_GROUPS: &str = "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE";
    enroll(&[], &[(EXCLUDED_GROUPS, "1000")])?;
    ensure!(fixture.accepted_by()? == 80, "the app's group is excluded");
    enroll(&[], &[(GROUPS, "2000")])?;
    ensure!(
        fixture.accepted_by()? == 80,
        "the app's group is not included"
    );
    enroll(&[], &[(GROUPS, "2000,1000")])?;
    ensure!(
        fixture.accepted_by()? == 15001,
        "the app's group is included"
    );
    // Rules by an older Istio.
    enroll(&[("sidetrack.dev/dialect", "1.8")], &[])?;
    let ssh = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", 22)))?;
    ensure!(
        ssh == Err(libc::ECONNREFUSED),
        "22 is not captured, and has no listener: {ssh:?}"
    );
    Ok(())
}

/// The port that accepts a connection to the pod.
fn inbound(fixture: &PodFixture, port: u16) -> Result<u16> {
    let connected = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", port)))?;
    Ok(connected
        .map_err(|errno| anyhow!("errno {errno}"))?
        .accepted_by)
}
