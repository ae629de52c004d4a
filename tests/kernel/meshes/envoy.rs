//! Envoy with the listeners that Kuma's and Consul's dataplanes give it.
//!
//! A destination that Envoy has goes to another port than the one that was dialed, so that the port says whether Envoy
//! was there, and whether it received the exact destination.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use lab::{
    command::Process,
    deploy::{checkout, lacks},
    envoy::{self, address, binary, original_dst, tcp_proxy},
    network::PodNet,
    protocol::{APP, Identity, ROOT},
};
use serde_json::{Value, json};

use super::{CONSUL, KUMA, dialed, enroll};
use crate::fixture::{POD, PodFixture, VIP, at};

/// Where Envoy sends its own destinations, outside and in the pod.
const KNOWN_OUTSIDE: u16 = 81;
const APP_PORT: u16 = 8080;
/// A destination outside that Envoy does not have.
const OTHER: u16 = 443;

/// Starts Envoy in the pod, as the proxy's user.
fn start(pod: &PodNet, who: &Identity, config: &Value, file: &Path) -> Result<Process> {
    fs::write(file, config.to_string())?;
    let program = binary(&checkout("target/tools/python"))?;
    let file = file.to_string_lossy();
    let arguments = [
        "-c",
        &file,
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "error",
    ];
    envoy::start(pod, pod.command(who.uid, Path::new(&program), &arguments))
}

/// A cluster with one address, which is called from another one if that is given.
fn cluster(name: &str, to: (&str, u16), source: Option<&str>) -> Value {
    let mut cluster = json!({
        "name": name, "type": "STATIC", "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": address(to.0, to.1)}}]},
        ]},
    });
    if let Some(source) = source {
        cluster["upstream_bind_config"] =
            json!({"source_address": {"address": source, "port_value": 0}});
    }
    cluster
}

fn passthrough() -> Value {
    json!({
        "name": "passthrough", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "1s",
    })
}

fn bootstrap(listeners: Value, clusters: Value) -> Value {
    json!({
        "node": {"id": "test", "cluster": "test"},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    })
}

/// Opens what the known and the unknown destinations lead to, and checks that connections arrive there.
fn check(fixture: &PodFixture) -> Result<()> {
    for port in [KNOWN_OUTSIDE, OTHER] {
        fixture.outside.listen(&ROOT, at("0.0.0.0", port))?;
    }
    for (to, port) in [(at(VIP[0], 80), KNOWN_OUTSIDE), (at(VIP[0], OTHER), OTHER)] {
        let made = dialed(&fixture.client, &APP, to)?;
        ensure!(made.accepted_by == port, "to {to}: {made:?}");
        let is_proxied = made.server.peer.port() != made.client.local.port();
        ensure!(is_proxied && made.client.peer == to, "to {to}: {made:?}");
    }
    let made = dialed(&fixture.outside, &ROOT, at(POD[0], 80))?;
    ensure!(made.accepted_by == APP_PORT, "inbound: {made:?}");
    Ok(())
}

kernel_test!(kuma_by_envoy);
fn kuma_by_envoy() -> Result<()> {
    if lacks("meshes", "Envoy") {
        return Ok(());
    }
    let fixture = PodFixture::new()?;
    let servers = fixture.pod.actor()?;
    let notes = [
        ("kuma.io/sidecar-injected", "true"),
        (
            "traffic.kuma.io/transparent-proxy-config",
            "redirect: {dns: {enabled: true, captureAll: true}}",
        ),
    ];
    let init = json!([{"name": "kuma-sidecar", "restartPolicy": "Always"}]);
    enroll(&fixture, &init, &json!([{"name": "app"}]), &notes)?;
    // Capture listeners hand over to listeners at the exact destination, which are bound to nothing.
    let capture = |name: &str, port: u16| {
        json!({
            "name": name, "address": address("0.0.0.0", port), "use_original_dst": true,
            "filter_chains": [{"filters": [tcp_proxy("passthrough")]}],
        })
    };
    let at_destination = |name: &str, to: (&str, u16)| {
        json!({
            "name": name, "address": address(to.0, to.1), "bind_to_port": false,
            "filter_chains": [{"filters": [tcp_proxy(name)]}],
        })
    };
    let config = bootstrap(
        json!([
            capture("outbound:passthrough", 15001),
            capture("inbound:passthrough", 15006),
            at_destination("outbound", (VIP[0], 80)),
            at_destination("inbound", (POD[0], 80)),
        ]),
        json!([
            passthrough(),
            cluster("outbound", (VIP[0], KNOWN_OUTSIDE), None),
            cluster("inbound", (POD[0], APP_PORT), Some("127.0.0.6")),
        ]),
    );
    servers.listen(&APP, at(POD[0], APP_PORT))?;
    let _envoy = start(
        &fixture.pod,
        &KUMA,
        &config,
        &fixture.lab.dir().join("envoy.json"),
    )?;
    check(&fixture)
}

kernel_test!(consul_by_envoy);
fn consul_by_envoy() -> Result<()> {
    if lacks("meshes", "Envoy") {
        return Ok(());
    }
    let fixture = PodFixture::new()?;
    let servers = fixture.pod.actor()?;
    let config = json!({"ProxyUserID": "5995", "ProxyInboundPort": 20000});
    let notes = [
        ("consul.hashicorp.com/connect-inject-status", "injected"),
        ("consul.hashicorp.com/transparent-proxy-status", "enabled"),
        (
            "consul.hashicorp.com/redirect-traffic-config",
            &config.to_string(),
        ),
    ];
    let containers = json!([{"name": "app"}, {"name": "consul-dataplane"}]);
    enroll(&fixture, &json!([]), &containers, &notes)?;
    // Filter chains by the destination, and the application on loopback.
    let known = json!({
        "filter_chain_match": {
            "prefix_ranges": [{"address_prefix": VIP[0], "prefix_len": 32}], "destination_port": 80,
        },
        "filters": [tcp_proxy("outbound")],
    });
    let config = bootstrap(
        json!([
            {
                "name": "outbound_listener", "address": address("127.0.0.1", 15001),
                "listener_filters": [original_dst()], "filter_chains": [known],
                "default_filter_chain": {"filters": [tcp_proxy("passthrough")]},
            },
            {
                "name": "public_listener", "address": address(POD[0], 20000),
                "filter_chains": [{"filters": [tcp_proxy("local_app")]}],
            },
        ]),
        json!([
            passthrough(),
            cluster("outbound", (VIP[0], KNOWN_OUTSIDE), None),
            cluster("local_app", ("127.0.0.1", APP_PORT), None),
        ]),
    );
    servers.listen(&APP, at("127.0.0.1", APP_PORT))?;
    let _envoy = start(
        &fixture.pod,
        &CONSUL,
        &config,
        &fixture.lab.dir().join("envoy.json"),
    )?;
    check(&fixture)
}
