//! Pods of Linkerd, Kuma and Consul as their injectors leave them, with a stand-in for each proxy that listens where the
//! real one does.

mod envoy;

use std::net::SocketAddr;

use anyhow::{Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::is,
    injected::injected,
    network::manifest,
    protocol::{APP, Connected, Dial, Identity, Listen, ROOT},
    udp::SendUdp,
};
use serde_json::{Value, json};

use crate::fixture::{ClusterFixture, POD, PodFixture, VIP, at, original};

const LINKERD: Identity = Identity::of(2102);
const KUMA: Identity = Identity::of(5678);
const CONSUL: Identity = Identity::of(5995);
/// Who Linkerd's check runs as.
const CHECK: Identity = Identity::of(65534);

/// Enrolls the fixture's pod with these init containers, containers and annotations.
fn enroll(
    fixture: &PodFixture,
    init: &Value,
    containers: &Value,
    notes: &[(&str, &str)],
) -> Result<()> {
    let pod = manifest("app", &fixture.pod, notes).edited(|pod| {
        pod["spec"] = json!({"initContainers": init, "containers": containers});
    });
    fixture.lab.enroll_manifest("app", &pod)
}

fn dialed(actor: &Actor, who: &Identity, to: SocketAddr) -> Result<Connected> {
    actor
        .dial(Dial::new(who, to))?
        .map_err(|errno| anyhow!("uid {} to {to}: errno {errno}", who.uid))
}

/// Checks who accepts a connection, and what that one's socket says was dialed.
fn arrives(actor: &Actor, who: &Identity, to: SocketAddr, port: u16) -> Result<Connected> {
    let made = dialed(actor, who, to)?;
    ensure!(
        made.accepted_by == port,
        "uid {} to {to}: {made:?}",
        who.uid
    );
    ensure!(
        original(&made.server, to) == Ok(to),
        "uid {} to {to}: {made:?}",
        who.uid
    );
    Ok(made)
}

fn linkerd_proxy() -> Value {
    json!({
        "name": "linkerd-proxy", "restartPolicy": "Always",
        "env": [
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "[::]:4143"},
            {"name": "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "value": "127.0.0.1:4140,[::1]:4140"},
        ],
    })
}

/// Although the sidecar listens on one address of loopback: a port that a client has bound serves several destinations at
/// once, and one after the other.
fn each_destination_has_all_ports(fixture: &PodFixture, outbound_port: u16) -> Result<()> {
    for round in 0..3 {
        let mut dial = Dial::new(&APP, at(VIP[0], 80));
        dial.source = Some(at("0.0.0.0", 23_461));
        dial.beside = Some(at("10.109.118.32", 8080));
        let made = fixture.client.dial(dial)?;
        let made = made.map_err(|errno| anyhow!("round {round}: errno {errno}"))?;
        ensure!(made.accepted_by == outbound_port, "{made:?}");
        ensure!(made.client.peer == at(VIP[0], 80), "{made:?}");
    }
    let reasons = fixture.agent.places.maps()?.handshakes_by_reason()?;
    ensure!(reasons.iter().all(|(_, count)| *count == 0), "{reasons:?}");
    Ok(())
}

kernel_test!(linkerd_needs_nothing_but_its_own_cni_setting);
fn linkerd_needs_nothing_but_its_own_cni_setting() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    let servers = fixture.pod.actor()?;
    let init = json!([{"name": "linkerd-network-validator"}, linkerd_proxy()]);
    enroll(&fixture, &init, &json!([{"name": "app"}]), &[])?;
    // linkerd-network-validator: a wildcard listener on the outbound port takes its connection to anywhere.
    let check = servers.listen(&CHECK, at("0.0.0.0", 4140))?;
    arrives(&fixture.client, &CHECK, at("1.1.1.1", 20001), 4140)?;
    servers.close(check, 0)?;
    // Then the proxy, whose outbound listeners are on loopback and whose inbound one takes both families.
    for address in ["127.0.0.1", "::1"] {
        servers.listen(&LINKERD, at(address, 4140))?;
    }
    servers.listen_group(Listen {
        address: at("::", 4143),
        owner: LINKERD,
        sockets: 1,
        v6_only: false,
        transparent: false,
        mptcp: false,
    })?;
    servers.listen(&APP, at("0.0.0.0", 80))?;
    for family in [0, 1] {
        let pod = POD[family];
        arrives(&fixture.client, &APP, at(VIP[family], 80), 4140)?;
        arrives(&fixture.outside, &ROOT, at(pod, 80), 4143)?;
        // Other proxies dial the inbound port itself, and this one has to find its own port behind it.
        arrives(&fixture.outside, &ROOT, at(pod, 4143), 4143)?;
    }
    each_destination_has_all_ports(&fixture, 4140)?;
    // A redirect of these would lead the proxy to itself.
    arrives(&fixture.client, &LINKERD, at(POD[0], 80), 80)?;
    arrives(&fixture.client, &APP, at(POD[0], 80), 80)?;
    // No rule of Linkerd's is about it.
    ensure!(!has_self_v6(&fixture)?, "lo has ::6");
    Ok(())
}

/// Whether lo has the address from which Istio's and Kuma's sidecars call the app.
fn has_self_v6(fixture: &PodFixture) -> Result<bool> {
    let addresses = fixture.pod.ip("-6 -oneline address show dev lo")?;
    Ok(addresses.contains(" ::6/128"))
}

kernel_test!(kuma_passes_its_validation);
fn kuma_passes_its_validation() -> Result<()> {
    let fixture = PodFixture::new()?;
    let servers = fixture.pod.actor()?;
    let config = "redirect: {dns: {enabled: true, captureAll: true}}";
    let notes = [
        ("kuma.io/sidecar-injected", "true"),
        ("traffic.kuma.io/transparent-proxy-config", config),
    ];
    let sidecar = json!({"name": "kuma-sidecar", "restartPolicy": "Always"});
    let init = json!([{"name": "kuma-validation"}, sidecar]);
    enroll(&fixture, &init, &json!([{"name": "app"}]), &notes)?;
    // kuma-validation: from loopback to the address that only the sidecar uses, which comes to its inbound port.
    for (own, sidecar) in [("127.0.0.1", "127.0.0.6"), ("::1", "::6")] {
        let listener = servers.listen(&KUMA, at(own, 15006))?;
        let mut dial = Dial::new(&KUMA, at(sidecar, 20123));
        dial.source = Some(at(own, 0));
        let made = fixture
            .client
            .dial(dial)?
            .map_err(|errno| anyhow!("to {sidecar}: errno {errno}"))?;
        ensure!(made.accepted_by == 15006, "{made:?}");
        servers.close(listener, 0)?;
    }
    for (port, address) in [(15001, "0.0.0.0"), (15006, "0.0.0.0"), (15053, "0.0.0.0")] {
        servers.listen(&KUMA, at(address, port))?;
    }
    servers.listen(&APP, at("0.0.0.0", 80))?;
    fixture.outside.listen(&ROOT, at("0.0.0.0", 53))?;
    arrives(&fixture.client, &APP, at(VIP[0], 80), 15001)?;
    arrives(&fixture.outside, &ROOT, at(POD[0], 80), 15006)?;
    // Envoy's own upstream: its own pod comes in by the inbound port, unless it is bound to 127.0.0.6.
    arrives(&fixture.client, &KUMA, at(POD[0], 80), 15006)?;
    let mut to_app = Dial::new(&KUMA, at(POD[0], 80));
    to_app.source = Some(at("127.0.0.6", 0));
    let made = fixture
        .client
        .dial(to_app)?
        .map_err(|errno| anyhow!("to the app: errno {errno}"))?;
    ensure!(made.accepted_by == 80, "{made:?}");
    // Queries over TCP go to the server.
    ensure!(dialed(&fixture.client, &APP, at(VIP[0], 53))?.accepted_by == 53);
    ensure!(has_self_v6(&fixture)?, "lo has no ::6");
    Ok(())
}

kernel_test!(consul_listens_on_addresses_of_its_own);
fn consul_listens_on_addresses_of_its_own() -> Result<()> {
    let fixture = PodFixture::new()?;
    let servers = fixture.pod.actor()?;
    let config = json!({
        "ConsulDNSIP": "127.0.0.1", "ConsulDNSPort": 8600, "ProxyUserID": "5995",
        "ProxyInboundPort": 20000, "ProxyOutboundPort": 15001, "ExcludeUIDs": ["5996"],
    });
    let notes = [
        ("consul.hashicorp.com/connect-inject-status", "injected"),
        ("consul.hashicorp.com/transparent-proxy-status", "enabled"),
        (
            "consul.hashicorp.com/redirect-traffic-config",
            &config.to_string(),
        ),
    ];
    let init = json!([{"name": "consul-connect-inject-init"}]);
    let containers = json!([{"name": "app"}, {"name": "consul-dataplane"}]);
    enroll(&fixture, &init, &containers, &notes)?;
    servers.listen(&CONSUL, at(POD[0], 20000))?;
    servers.listen(&CONSUL, at("127.0.0.1", 15001))?;
    servers.listen(&APP, at("0.0.0.0", 80))?;
    servers.answer_udp(&CONSUL, at("127.0.0.1", 8600))?;
    arrives(&fixture.client, &APP, at(VIP[0], 80), 15001)?;
    arrives(&fixture.outside, &ROOT, at(POD[0], 80), 20000)?;
    each_destination_has_all_ports(&fixture, 15001)?;
    // No rule is about connections that stay in the pod: the app's are captured, the proxy's are not.
    arrives(&fixture.client, &APP, at(POD[0], 80), 15001)?;
    arrives(&fixture.client, &CONSUL, at(POD[0], 80), 80)?;
    let by_init = dialed(&fixture.client, &Identity::of(5996), at(VIP[0], 80))?;
    ensure!(by_init.accepted_by == 80, "{by_init:?}");
    let answer = fixture.client.send_udp(SendUdp {
        sender: APP,
        destination: at("127.0.0.1", 53),
        source: None,
        connected: true,
    })?;
    let answer = answer.map_err(|errno| anyhow!("the query: errno {errno}"))?;
    ensure!(answer.answered_by.port() == 8600, "{answer:?}");
    Ok(())
}

kernel_test!(pods_of_the_api_server_have_old_or_native_sidecars);
fn pods_of_the_api_server_have_old_or_native_sidecars() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let kuma = [("kuma.io/sidecar-injected", "true")];
    let consul = [
        ("consul.hashicorp.com/connect-inject-status", "injected"),
        ("consul.hashicorp.com/transparent-proxy-status", "enabled"),
        (
            "consul.hashicorp.com/redirect-traffic-config",
            r#"{"ProxyUserID":"5995","ProxyInboundPort":20000}"#,
        ),
    ];
    let mut clients = Vec::new();
    for (number, (sidecar, mesh, notes)) in (2..).zip([
        ("linkerd-proxy", "linkerd", &[][..]),
        ("kuma-sidecar", "kuma", &kuma),
        ("consul-dataplane", "consul", &consul),
    ]) {
        for (is_native, number) in [(false, number), (true, number + 10)] {
            let name = format!("{mesh}-{number}");
            let uid = node.lab.uid(number.into());
            let pod = node
                .lab
                .pod(&name, number)?
                .under_kubelet(&node.lab, &uid)?;
            clients.push(pod.actor()?);
            let mut object = injected(&name, &uid);
            for (note, value) in notes {
                object["metadata"]["annotations"][note] = json!(value);
            }
            let (app, container) = (
                json!({"name": "app"}),
                json!({"name": sidecar, "restartPolicy": "Always"}),
            );
            let (init, all) = match is_native {
                true => (json!([container]), json!([app])),
                false => (json!([]), json!([app, {"name": sidecar}])),
            };
            object["spec"]["initContainers"] = init;
            object["spec"]["containers"] = all;
            node.api.apply(object)?;
            node.soon(&format!("shop/{name}"), |pod| {
                pod.is_some_and(|pod| {
                    pod["state"] == "enrolled" && pod["policy"]["dialect"] == mesh
                })
            })?;
        }
    }
    let status = node.places().json(&["status", "-o", "json"])?;
    let counts = json!({"linkerd": 2, "kuma": 2, "consul": 2});
    ensure!(status["meshes"] == counts, "{status}");
    Ok(())
}

kernel_test!(a_pod_of_two_meshes_is_rejected);
fn a_pod_of_two_meshes_is_rejected() -> Result<()> {
    let fixture = PodFixture::new()?;
    let pod = manifest("app", &fixture.pod, &[]).edited(|pod| {
        pod["spec"]["initContainers"] = json!([linkerd_proxy()]);
    });
    fixture.lab.write_manifest("app", &pod)?;
    let places = &fixture.agent.places;
    places.wait_pod("test/app", is("rejected", "sidecars of istio and linkerd"))?;
    Ok(())
}
