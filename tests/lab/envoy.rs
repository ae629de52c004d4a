//! Envoy configuration of a sidecar, with the listeners and clusters Istio gives it: virtualOutbound
//! on 15001, which hands connections to the listener of their original destination; virtualInbound
//! on 15006, whose upstream is that destination, called from 127.0.0.6; health on 15021.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    command::{Process, run_words},
    network::PodNet,
    wait::eventually,
};

const HCM: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const TCP_PROXY: &str =
    "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
const ORIGINAL_DST: &str =
    "type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst";
const ORIGINAL_SRC: &str =
    "type.googleapis.com/envoy.extensions.filters.listener.original_src.v3.OriginalSrc";
const FILE_LOG: &str = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog";

/// The fields of Istio's JSON access log that the article shows, and how Envoy spells them.
pub const LOG_FIELDS: [(&str, &str); 13] = [
    ("authority", "%REQ(:AUTHORITY)%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER_RAW%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
];

/// The binary inside the installed wheel.
pub fn binary(tools: &Path) -> Result<String> {
    let lib = fs::read_dir(tools.join("lib")).context("no Envoy: run `cargo xtask setup`")?;
    lib.flatten()
        .map(|python| python.path().join("site-packages/envoy/_bin/envoy"))
        .find(|path| path.exists())
        .map(|path| path.to_string_lossy().into_owned())
        .context("the installed wheel has no envoy/_bin/envoy")
}

/// Starts an Envoy in a pod, by a command of the pod's, and waits until it listens on 15001.
pub fn start(pod: &PodNet, mut command: Command) -> Result<Process> {
    const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    let envoy = Process::start(&mut command)?;
    let words = [
        "ip",
        "netns",
        "exec",
        &pod.netns,
        "ss",
        "-Hltn",
        "sport = :15001",
    ];
    eventually(WAIT_TIMEOUT, || {
        let listens = !run_words(&words)?.trim().is_empty();
        ensure!(listens, "Envoy does not listen");
        Ok(())
    })?;
    Ok(envoy)
}

/// A service in this sidecar's configuration.
pub struct Service<'a> {
    /// Host name.
    pub name: &'a str,
    /// Address and port of the service.
    pub address: (&'a str, u16),
    /// Address of its one endpoint.
    pub endpoint: &'a str,
}

/// The whole bootstrap. `log` is the access log's file.
#[must_use]
pub fn bootstrap(id: &str, service: &Service<'_>, log: &str) -> Value {
    let (vip, port) = service.address;
    let outbound = format!(
        "outbound|{port}||{}.default.svc.cluster.local",
        service.name
    );
    let inbound = format!("inbound|{port}||");
    json!({
        "node": {"id": id, "cluster": id},
        "admin": {"address": address("127.0.0.1", 15000)},
        "static_resources": {
            "listeners": [
                {
                    "name": "virtualOutbound",
                    "address": address("0.0.0.0", 15001),
                    "use_original_dst": true,
                    "listener_filters": [original_dst()],
                    "filter_chains": [{"filters": [tcp_proxy("PassthroughCluster")]}],
                },
                {
                    "name": format!("{vip}_{port}"),
                    "address": address(vip, port),
                    "bind_to_port": false,
                    "filter_chains": [{"filters": [http("outbound", &outbound, log)]}],
                },
                {
                    "name": "virtualInbound",
                    "address": address("0.0.0.0", 15006),
                    "listener_filters": [original_dst()],
                    "filter_chains": [{
                        "filter_chain_match": {"destination_port": port},
                        "filters": [http("inbound", &inbound, log)],
                    }],
                },
                {
                    "name": "health",
                    "address": address("0.0.0.0", 15021),
                    "filter_chains": [{"filters": [health()]}],
                },
            ],
            "clusters": [
                {
                    "name": outbound,
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "load_assignment": {
                        "cluster_name": outbound,
                        "endpoints": [{"lb_endpoints": [
                            {"endpoint": {"address": address(service.endpoint, port)}}
                        ]}],
                    },
                },
                {
                    "name": inbound,
                    "type": "ORIGINAL_DST",
                    "lb_policy": "CLUSTER_PROVIDED",
                    "connect_timeout": "1s",
                    "upstream_bind_config": {
                        "source_address": {"address": "127.0.0.6", "port_value": 0}
                    },
                },
                {
                    "name": "PassthroughCluster",
                    "type": "ORIGINAL_DST",
                    "lb_policy": "CLUSTER_PROVIDED",
                    "connect_timeout": "1s",
                },
            ],
        },
    })
}

/// The mark of a transparent sidecar's connections to its app.
pub const MARK: u32 = 1337;

/// The same for a sidecar in mode TPROXY: it calls its app from the client's address.
#[must_use]
pub fn transparent_bootstrap(id: &str, service: &Service<'_>, log: &str) -> Value {
    let mut config = bootstrap(id, service, log);
    let resources = &mut config["static_resources"];
    make_transparent(resources, "virtualInbound");
    config
}

/// Has an inbound listener call the app from the client's address.
pub fn make_transparent(resources: &mut Value, inbound: &str) {
    for listener in resources["listeners"].as_array_mut().into_iter().flatten() {
        if listener["name"] == inbound {
            listener["transparent"] = json!(true);
            listener["listener_filters"] = json!([original_dst(), original_src()]);
        }
    }
    for cluster in resources["clusters"].as_array_mut().into_iter().flatten() {
        if let Some(cluster) = cluster.as_object_mut() {
            cluster.remove("upstream_bind_config");
        }
    }
}

/// The listener filter that has connections to the app begin at the client's address.
fn original_src() -> Value {
    json!({
        "name": "envoy.filters.listener.original_src",
        "typed_config": {"@type": ORIGINAL_SRC, "mark": MARK},
    })
}

/// An address and a port.
#[must_use]
pub fn address(ip: &str, port: u16) -> Value {
    json!({"socket_address": {"address": ip, "port_value": port}})
}

/// The listener filter that asks for the original destination.
#[must_use]
pub fn original_dst() -> Value {
    json!({"name": "envoy.filters.listener.original_dst", "typed_config": {"@type": ORIGINAL_DST}})
}

/// A filter that carries bytes to a cluster.
#[must_use]
pub fn tcp_proxy(cluster: &str) -> Value {
    json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {"@type": TCP_PROXY, "stat_prefix": cluster, "cluster": cluster},
    })
}

fn http(prefix: &str, cluster: &str, log: &str) -> Value {
    let fields: serde_json::Map<String, Value> = LOG_FIELDS
        .iter()
        .map(|(name, format)| ((*name).to_owned(), json!(format)))
        .collect();
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": cluster}});
    manager(
        prefix,
        &route,
        json!([{
            "name": "envoy.access_loggers.file",
            "typed_config": {
                "@type": FILE_LOG,
                "path": log,
                "log_format": {"json_format": fields},
            },
        }]),
    )
}

fn health() -> Value {
    let route = json!({
        "match": {"prefix": "/healthz/ready"},
        "direct_response": {"status": 200, "body": {"inline_string": "ready\n"}},
    });
    manager("health", &route, json!([]))
}

/// A filter that serves HTTP by one route.
#[must_use]
pub fn manager(prefix: &str, route: &Value, access_log: Value) -> Value {
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": HCM,
            "stat_prefix": prefix,
            "access_log": access_log,
            "route_config": {
                "name": prefix,
                "virtual_hosts": [{"name": prefix, "domains": ["*"], "routes": [route]}],
            },
            "http_filters": [{
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": ROUTER},
            }],
        },
    })
}
