//! The objects of the test. All of them are in its namespace.

use serde_json::{Value, json};
use sidetrack_policy::select::LABEL;

/// Marks the namespace, so that people see whose it is.
pub const MARK: &str = "sidetrack.dev/connectivity-test";
/// The Service in front of the server.
pub const SERVICE: &str = "server";
/// The container whose connections count.
pub const APP: &str = "app";
/// A container of the client that runs as the sidecar's user.
pub const AS_PROXY: &str = "as-proxy";
/// The app's port.
pub const PORT: u16 = 8080;
/// The Service's port.
pub const SERVICE_PORT: u16 = 80;
/// The server's port that its sidecar does not get.
pub const EXCLUDED_IN: u16 = 8081;
/// The port to which the client's connections go direct.
pub const EXCLUDED_OUT: u16 = 8082;
/// The sidecar's port for its own health.
pub const HEALTH: u16 = 15021;
/// Headers that the sidecars add: their original destination and their peer.
pub const OUT: &str = "x-sidetrack-outbound";
pub const OUT_PEER: &str = "x-sidetrack-outbound-peer";
pub const IN: &str = "x-sidetrack-inbound";
pub const IN_PEER: &str = "x-sidetrack-inbound-peer";

/// The sidecar's user.
const PROXY_USER: i64 = 1337;
const APP_USER: i64 = 1000;
const EXCLUDE_IN: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
const EXCLUDE_OUT: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const HTTP_MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const ORIGINAL_DST: &str =
    "type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst";

/// Where the test runs, and on what images.
#[derive(Clone, Copy, Debug)]
pub struct Images<'a> {
    /// With Python.
    pub app: &'a str,
    /// With Envoy.
    pub proxy: &'a str,
}

/// The namespace; without a name the API server makes one that is unique.
pub fn namespace(name: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"labels": {
            LABEL: "enabled",
            MARK: "",
            // The pods bring their own sidecar.
            "istio-injection": "disabled",
            "pod-security.kubernetes.io/enforce": "restricted",
        }},
    });
    match name {
        Some(name) => object["metadata"]["name"] = name.into(),
        None => object["metadata"]["generateName"] = "sidetrack-test-".into(),
    }
    object
}

/// What the pods mount.
pub fn config_map() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "test"},
        "data": {"app.py": include_str!("app.py"), "envoy.json": envoy().to_string()},
    })
}

/// The server's Service.
pub fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE},
        "spec": {
            "selector": {"app": "server"}, "ipFamilies": ["IPv4"],
            "ports": [{"port": SERVICE_PORT, "targetPort": PORT}],
        },
    })
}

/// The pods: client and server with a sidecar, one without, and one whose sidecar does not listen.
pub fn pods(images: Images<'_>) -> Vec<Value> {
    let app = |ports: &[u16]| {
        let mut command = vec![
            "python3".to_owned(),
            "/etc/test/app.py".to_owned(),
            "serve".to_owned(),
        ];
        command.extend(ports.iter().map(u16::to_string));
        container(APP, images.app, APP_USER, &json!(command))
    };
    let sidecar = || {
        let command = json!([
            "envoy",
            "-c",
            "/etc/test/envoy.json",
            "--concurrency",
            "1",
            "--log-level",
            "warning",
            "--disable-hot-restart",
        ]);
        let mut sidecar = container("istio-proxy", images.proxy, PROXY_USER, &command);
        sidecar["readinessProbe"] = json!({
            "httpGet": {"path": "/healthz/ready", "port": HEALTH}, "periodSeconds": 1,
        });
        sidecar
    };
    let idle = |name: &str| {
        let command = json!(["python3", "-c", "import signal; signal.pause()"]);
        container(name, images.app, PROXY_USER, &command)
    };
    let mut served = app(&[PORT, EXCLUDED_IN]);
    served["readinessProbe"] =
        json!({"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1, "timeoutSeconds": 2});
    let port = |port: u16| port.to_string();
    vec![
        pod(
            "server",
            &json!([served, sidecar()]),
            &[(EXCLUDE_IN, port(EXCLUDED_IN))],
            true,
        ),
        pod(
            "client",
            &json!([app(&[PORT]), idle(AS_PROXY), sidecar()]),
            &[(EXCLUDE_OUT, port(EXCLUDED_OUT))],
            true,
        ),
        pod("plain", &json!([app(&[PORT, EXCLUDED_OUT])]), &[], false),
        pod(
            "down",
            &json!([app(&[PORT]), idle("istio-proxy")]),
            &[],
            true,
        ),
    ]
}

fn container(name: &str, image: &str, user: i64, command: &Value) -> Value {
    json!({
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": command,
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "volumeMounts": [{"name": "test", "mountPath": "/etc/test"}],
        "securityContext": {
            "runAsUser": user, "runAsGroup": user, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}

fn pod(name: &str, containers: &Value, annotations: &[(&str, String)], sidecar: bool) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": {}},
        "spec": {
            "containers": containers,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "volumes": [{"name": "test", "configMap": {"name": "test"}}],
        },
    });
    if sidecar {
        object["metadata"]["labels"]["security.istio.io/tlsMode"] = "istio".into();
        object["metadata"]["annotations"]["sidecar.istio.io/status"] =
            r#"{"containers":["istio-proxy"]}"#.into();
    }
    for (annotation, value) in annotations {
        object["metadata"]["annotations"][*annotation] = value.as_str().into();
    }
    object
}

/// The sidecar's configuration: what goes out continues to its original destination, what comes in to the app, from
/// 127.0.0.6. Both add to the answer what they know of the connection.
fn envoy() -> Value {
    let listener = |name: &str, port: u16, cluster: &str, headers: [&str; 2]| {
        let values = ["%DOWNSTREAM_LOCAL_ADDRESS%", "%DOWNSTREAM_REMOTE_ADDRESS%"];
        let added: Vec<Value> = headers
            .iter()
            .zip(values)
            .map(|(key, value)| json!({"header": {"key": key, "value": value}}))
            .collect();
        let route = json!({
            "match": {"prefix": "/"}, "route": {"cluster": cluster}, "response_headers_to_add": added,
        });
        json!({
            "name": name, "address": address(port), "use_original_dst": port == 15001,
            "listener_filters": [{"name": "envoy.filters.listener.original_dst", "typed_config": {"@type": ORIGINAL_DST}}],
            "filter_chains": [{"filters": [manager(name, &route)]}],
        })
    };
    let cluster = |name: &str, bind: &Value| {
        let mut cluster = json!({
            "name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s",
        });
        if !bind.is_null() {
            cluster["upstream_bind_config"] = bind.clone();
        }
        cluster
    };
    let ready = json!({
        "match": {"prefix": "/healthz/ready"},
        "direct_response": {"status": 200, "body": {"inline_string": "ready\n"}},
    });
    json!({
        "node": {"id": "test", "cluster": "test"},
        "static_resources": {
            "listeners": [
                listener("outbound", 15001, "out", [OUT, OUT_PEER]),
                listener("inbound", 15006, "in", [IN, IN_PEER]),
                {"name": "health", "address": address(HEALTH), "filter_chains": [{"filters": [manager("health", &ready)]}]},
            ],
            "clusters": [
                cluster("out", &Value::Null),
                cluster("in", &json!({"source_address": {"address": "127.0.0.6", "port_value": 0}})),
            ],
        },
    })
}

fn address(port: u16) -> Value {
    json!({"socket_address": {"address": "0.0.0.0", "port_value": port}})
}

fn manager(name: &str, route: &Value) -> Value {
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": HTTP_MANAGER, "stat_prefix": name,
            "route_config": {"name": name, "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}}],
        },
    })
}
