//! Namespaces with pods as Istio's injector leaves them, and a load between them.

use std::process::Command;

use anyhow::{Result, ensure};
use lab::{
    agent::binary,
    envoy::{address, make_transparent, manager, original_dst},
    runtime::run_with,
};
use serde_json::{Value, json};

use crate::kubectl;

/// The header that a sidecar adds to answers on the way out of a pod.
const OUT: &str = "x-outbound-sidecar";
/// The header that a sidecar adds to answers on the way into a pod.
const IN: &str = "x-inbound-sidecar";

/// The command of a container that does nothing.
pub const IDLE: [&str; 3] = ["sh", "-c", "while :; do sleep 3600; done"];

/// The name of [`load_on_host`].
pub const ON_HOST: &str = "load-on-host";

/// How a pod gets its interception before sidetrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// Not at all.
    None,
    /// By Istio's rules.
    Istio,
}

/// A namespace with what its pods mount.
pub fn namespace(name: &str) -> Result<Vec<Value>> {
    Ok(vec![
        kubectl::namespace(name),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "mesh", "namespace": name},
            "data": {
                "app.py": include_str!("app.py"),
                "envoy.json": envoy().to_string(),
                "transparent.json": transparent_envoy().to_string(),
                "rules.v4": rules()?,
                "istio-iptables": ISTIO_IPTABLES,
            },
        }),
    ])
}

/// Loads the rules by whatever the image has. The webhook replaces an istio-init only if it runs a program of this name.
const ISTIO_IPTABLES: &str = "\
#!/bin/sh
if command -v iptables-restore > /dev/null; then
  exec iptables-restore -n /etc/mesh/rules.v4
fi
exec xtables-nft-multi iptables-restore -n /etc/mesh/rules.v4
";

/// Istio's rules for a pod with the usual arguments.
fn rules() -> Result<String> {
    let dir = tempfile::tempdir()?;
    let manifest = dir.path().join("pod.json");
    let pod = template("rules", "default", Init::Istio, "unused", &app("serve"));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rules"}, "spec": pod["spec"]});
    std::fs::write(&manifest, pod.to_string())?;
    let mut command = Command::new(binary()?);
    command
        .args(["rules", "--format", "iptables", "--manifest"])
        .arg(&manifest);
    let output = run_with(&mut command, b"")?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn app(arguments: &str) -> Value {
    json!({
        "command": ["sh", "-c", format!("exec python3 /etc/mesh/app.py {arguments}")],
    })
}

/// The usual arguments of istio-init.
const ISTIO_INIT: [&str; 15] = [
    "istio-iptables",
    "-p",
    "15001",
    "-z",
    "15006",
    "-u",
    "1337",
    "-m",
    "REDIRECT",
    "-i",
    "*",
    "-b",
    "*",
    "-d",
    "15090,15021,15020",
];

fn sidecar_command(config: &str) -> String {
    format!(
        "exec envoy -c /etc/mesh/{config} --concurrency 1 --log-level warning --disable-hot-restart"
    )
}

/// A pod's metadata and spec.
fn template(name: &str, namespace: &str, init: Init, image: &str, app: &Value) -> Value {
    let mounts = json!([{"name": "mesh", "mountPath": "/etc/mesh"}]);
    let container = |name: &str, user: u32, more: &Value| {
        let mut all = json!({
            "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "volumeMounts": mounts,
            "securityContext": {"runAsUser": user, "runAsGroup": user},
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            all[field] = value.clone();
        }
        all
    };
    let sidecar = container(
        "istio-proxy",
        1337,
        &json!({
            "command": ["sh", "-c", sidecar_command("envoy.json"), "sh"],
            "args": ["proxy", "sidecar", "--domain", format!("{namespace}.svc.cluster.local")],
            "readinessProbe": {"httpGet": {"path": "/healthz/ready", "port": 15021}, "periodSeconds": 1, "failureThreshold": 60},
        }),
    );
    let mut istio_init = container(
        "istio-init",
        0,
        &json!({
            "command": ["/etc/mesh/istio-iptables"],
            "args": ISTIO_INIT,
        }),
    );
    istio_init["securityContext"]["capabilities"] = json!({"add": ["NET_ADMIN", "NET_RAW"]});
    let inits = if init == Init::Istio {
        vec![istio_init]
    } else {
        Vec::new()
    };
    json!({
        "metadata": {
            "labels": {"app": name, "security.istio.io/tlsMode": "istio"},
            "annotations": {"sidecar.istio.io/status": "{\"containers\":[\"istio-proxy\"]}"},
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "initContainers": inits,
            "containers": [container("app", 1000, app), sidecar],
            "volumes": [{"name": "mesh", "configMap": {"name": "mesh", "defaultMode": 0o555}}],
        },
    })
}

/// A Deployment.
fn deployment(name: &str, namespace: &str, replicas: usize, template: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
    })
}

/// A web server with its Service.
pub fn web(namespace: &str, init: Init, image: &str) -> Vec<Value> {
    let mut serve = app("serve");
    // Answered by the app, through its sidecar.
    serve["readinessProbe"] =
        json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 2, "timeoutSeconds": 2});
    let pod = template("web", namespace, init, image, &serve);
    vec![
        deployment("web", namespace, 1, &pod),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": namespace},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }),
    ]
}

/// A pod that calls an address, so many times a second, each time with a new connection, forever.
pub fn load(namespace: &str, init: Init, image: &str, url: &str, rate: u32) -> Value {
    let call = app(&format!("load {url} {rate}"));
    deployment(
        "load",
        namespace,
        1,
        &template("load", namespace, init, image, &call),
    )
}

/// A pod that calls an address once, as the first thing it does, and succeeds if no sidecar was missing.
pub fn first(name: &str, namespace: &str, image: &str, url: &str) -> Value {
    let mut pod = template(
        name,
        namespace,
        Init::None,
        image,
        &app(&format!("first {url}")),
    );
    pod["spec"]["restartPolicy"] = "Never".into();
    bare(name, namespace, &pod)
}

/// A pod with istio-init, by itself.
pub fn bare_with_init(name: &str, namespace: &str, image: &str) -> Value {
    bare(
        name,
        namespace,
        &template(name, namespace, Init::Istio, image, &app("serve")),
    )
}

/// A pod without istio-init, by itself.
pub fn bare_without(name: &str, namespace: &str, image: &str) -> Value {
    bare(
        name,
        namespace,
        &template(name, namespace, Init::None, image, &app("serve")),
    )
}

/// A pod in mode TPROXY, with a sidecar as Istio runs it there.
pub fn bare_transparent(name: &str, namespace: &str, image: &str) -> Value {
    let mut pod = bare_without(name, namespace, image);
    pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = "TPROXY".into();
    let sidecar = &mut pod["spec"]["containers"][1];
    sidecar["command"] = json!(["sh", "-c", sidecar_command("transparent.json"), "sh"]);
    sidecar["securityContext"] = json!({
        "runAsUser": 0,
        "runAsGroup": 1337,
        "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]},
    });
    pod
}

/// A pod whose containers are not restarted once they have ended.
pub fn bare_that_ends(name: &str, namespace: &str, image: &str) -> Value {
    let mut pod = bare_without(name, namespace, image);
    pod["spec"]["restartPolicy"] = "Never".into();
    pod
}

/// A pod without a sidecar that mounts nothing.
pub fn plain(name: &str, namespace: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "app", "image": image, "imagePullPolicy": "IfNotPresent",
                "command": IDLE,
            }],
        },
    })
}

fn bare(name: &str, namespace: &str, template: &Value) -> Value {
    let mut metadata = template["metadata"].clone();
    metadata["name"] = name.into();
    metadata["namespace"] = namespace.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

/// Many pods that only listen where a sidecar does.
pub fn crowd(namespace: &str, image: &str, count: usize) -> Value {
    let idle = json!({"command": IDLE});
    let mut pod = template("crowd", namespace, Init::None, image, &idle);
    let listen = ["sh", "-c", "exec python3 /etc/mesh/app.py listen", "sh"];
    set_sidecar(&mut pod, &listen);
    deployment("crowd", namespace, count, &pod)
}

/// A load in a pod that has the node's network. Its sidecar does nothing: its ports would be the node's.
pub fn load_on_host(namespace: &str, image: &str, url: &str, rate: u32) -> Value {
    let call = app(&format!("load {url} {rate}"));
    let mut pod = template(ON_HOST, namespace, Init::None, image, &call);
    pod["spec"]["hostNetwork"] = true.into();
    set_sidecar(&mut pod, &IDLE);
    deployment(ON_HOST, namespace, 1, &pod)
}

/// Another program in the sidecar's place, without its probe.
fn set_sidecar(pod: &mut Value, command: &[&str]) {
    let sidecar = &mut pod["spec"]["containers"][1];
    sidecar["command"] = json!(command);
    if let Some(fields) = sidecar.as_object_mut() {
        fields.remove("readinessProbe");
    }
}

/// The sidecar's configuration: what goes out continues to its original destination, what comes in to the app,
/// from 127.0.0.6. Both add a header to the answer and write a line to stdout.
fn envoy() -> Value {
    let listener = |name: &str, port: u16, cluster: &str, header: &str| {
        let route = json!({
            "match": {"prefix": "/"},
            "route": {"cluster": cluster, "timeout": "0s"},
            "response_headers_to_add": [{"header": {"key": header, "value": "envoy"}}],
        });
        json!({
            "name": name, "address": address("0.0.0.0", port),
            "use_original_dst": port == 15001,
            "listener_filters": [original_dst()],
            "filter_chains": [{"filters": [manager(name, &route, log(name))]}],
        })
    };
    // Each request has its own connection: one from before a change would hide what the change does.
    let protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let cluster = |name: &str, more: Value| {
        let mut all = json!({
            "name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "2s",
            "typed_extension_protocol_options": {protocol: {
                "@type": format!("type.googleapis.com/{protocol}"),
                "common_http_protocol_options": {"max_requests_per_connection": 1},
                "explicit_http_config": {"http_protocol_options": {}},
            }},
        });
        if !more.is_null() {
            all["upstream_bind_config"] = more;
        }
        all
    };
    let ready = json!({
        "match": {"prefix": "/healthz/ready"},
        "direct_response": {"status": 200, "body": {"inline_string": "ready\n"}},
    });
    json!({
        "node": {"id": "sidecar", "cluster": "mesh"},
        "admin": {"address": address("127.0.0.1", 15000)},
        "static_resources": {
            "listeners": [
                listener("outbound", 15001, "out", OUT),
                listener("inbound", 15006, "in", IN),
                {"name": "health", "address": address("0.0.0.0", 15021),
                 "filter_chains": [{"filters": [manager("health", &ready, json!([]))]}]},
            ],
            "clusters": [
                cluster("out", Value::Null),
                cluster("in", json!({"source_address": {"address": "127.0.0.6", "port_value": 0}})),
            ],
        },
    })
}

/// The same for mode TPROXY.
fn transparent_envoy() -> Value {
    let mut config = envoy();
    make_transparent(&mut config["static_resources"], "inbound");
    config
}

fn log(name: &str) -> Value {
    json!([{
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"json_format": {
                "listener": name,
                "path": "%REQ(:PATH)%",
                "code": "%RESPONSE_CODE%",
                "flags": "%RESPONSE_FLAGS%",
                "details": "%RESPONSE_CODE_DETAILS%",
                "local": "%DOWNSTREAM_LOCAL_ADDRESS%",
                "remote": "%DOWNSTREAM_REMOTE_ADDRESS%",
                "upstream": "%UPSTREAM_HOST%",
            }},
        },
    }])
}
