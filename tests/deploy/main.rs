//! `deploy/`: the chart as Helm's engine renders it, the plain manifests as kustomize builds them. Both
//! are held to the API's own types, to each other, and to what the agent does.

mod chart;
mod monitoring;
mod webhook;

use std::{collections::BTreeSet, path::Path, process::Command};

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, Secret, Service, ServiceAccount},
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use lab::deploy::{USED, USED_FOR_TAINT, capabilities, checkout};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sidetrack_policy::{
    facts::PodFacts,
    mesh::Mesh,
    policy::{InboundPorts, OutboundRanges, Policy},
    select::{Enroll, Wanted, wanted},
};

const NAMESPACE: &str = "sidetrack-system";

/// What Helm would create, or its error.
fn helm(values: &Value) -> Result<Vec<Value>, String> {
    helm_with(values, &[])
}

/// The same in a cluster that has some objects.
fn helm_with(values: &Value, objects: &[Value]) -> Result<Vec<Value>, String> {
    install(values, objects).map(|rendered| rendered.objects)
}

/// What an installation creates and prints.
#[derive(Debug, serde::Deserialize)]
struct Rendered {
    objects: Vec<Value>,
    /// Manifests of hooks: Helm creates them when they are asked for.
    hooks: Vec<String>,
    notes: String,
}

fn install(values: &Value, objects: &[Value]) -> Result<Rendered, String> {
    install_in(NAMESPACE, values, objects)
}

fn install_in(namespace: &str, values: &Value, objects: &[Value]) -> Result<Rendered, String> {
    let output = Command::new(checkout("target/tools/python/bin/python"))
        .arg(checkout("tests/deploy/render.py"))
        .arg(checkout("deploy/chart"))
        .args([namespace, &values.to_string(), &json!(objects).to_string()])
        .output()
        .expect("Python; `cargo xtask setup` installs it");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&output.stdout).expect("what Helm renders"))
}

fn kustomize() -> Vec<Value> {
    kustomize_of(&checkout("deploy/kubernetes"))
}

fn kustomize_of(dir: &Path) -> Vec<Value> {
    let output = Command::new("kubectl")
        .args(["kustomize", "--load-restrictor=LoadRestrictionsNone"])
        .arg(dir)
        .output()
        .expect("kubectl; `cargo xtask setup` installs it");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_saphyr::from_multiple(&String::from_utf8_lossy(&output.stdout)).expect("YAML")
}

/// Without what Helm adds on its own, in a fixed order.
fn comparable(objects: Vec<Value>) -> Vec<Value> {
    let mut objects: Vec<Value> = objects
        .into_iter()
        .map(|mut object| {
            let metadata = object["metadata"].as_object_mut().expect("metadata");
            metadata.remove("annotations");
            if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
                for convention in ["version", "part-of", "managed-by"] {
                    labels.remove(&format!("app.kubernetes.io/{convention}"));
                }
                labels.remove("helm.sh/chart");
            }
            object
        })
        .collect();
    objects.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
    objects
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

/// Reads an object as what it says it is. A field that the API does not have would get lost on the way.
fn parses_strictly(object: &Value) {
    match object["kind"].as_str() {
        Some("Pod") => survives::<Pod>(object),
        Some("DaemonSet") => survives::<DaemonSet>(object),
        Some("ConfigMap") => survives::<ConfigMap>(object),
        Some("Namespace") => survives::<Namespace>(object),
        Some("ServiceAccount") => survives::<ServiceAccount>(object),
        Some("ResourceQuota") => survives::<ResourceQuota>(object),
        Some("ClusterRole") => survives::<ClusterRole>(object),
        Some("ClusterRoleBinding") => survives::<ClusterRoleBinding>(object),
        Some("Role") => survives::<Role>(object),
        Some("RoleBinding") => survives::<RoleBinding>(object),
        Some("Deployment") => survives::<Deployment>(object),
        Some("Secret") => survives::<Secret>(object),
        Some("Service") => survives::<Service>(object),
        Some("PodDisruptionBudget") => survives::<PodDisruptionBudget>(object),
        Some("MutatingWebhookConfiguration") => survives::<MutatingWebhookConfiguration>(object),
        Some("NetworkPolicy") => survives::<NetworkPolicy>(object),
        // Not the API's own; the tests look at their fields.
        Some("Issuer" | "Certificate" | "PodMonitor" | "ServiceMonitor" | "PrometheusRule") => {}
        other => panic!("an object of kind {other:?}"),
    }
}

fn survives<T: DeserializeOwned + Serialize>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).expect("an object of the API");
    assert_eq!(&serde_json::to_value(typed).expect("JSON"), object);
}

/// Every pod can reach the metrics port, and keep it busy. Kubelet kills an agent whose probes fail.
#[test]
fn probes_do_not_depend_on_the_metrics_port() {
    let chart = helm(&json!({})).expect("the chart");
    for objects in [chart, kustomize()] {
        let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let arguments = container["args"].to_string();
        assert!(arguments.contains("--probe-port=9447"), "{arguments}");
        for (probe, path) in [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")] {
            let asked = json!({"host": "127.0.0.1", "port": 9447, "path": path});
            assert_eq!(container[probe]["httpGet"], asked);
        }
    }
}

#[test]
fn the_chart_and_the_plain_manifests_are_the_same() {
    let chart = comparable(helm(&json!({})).expect("the chart"));
    let (namespace, plain): (Vec<_>, Vec<_>) = comparable(kustomize())
        .into_iter()
        .partition(|object| object["kind"] == "Namespace");
    assert_eq!(chart, plain);
    assert_eq!(namespace.len(), 1);
    for object in chart.iter().chain(&namespace) {
        parses_strictly(object);
    }
}

#[test]
fn values_take_effect() {
    let objects = helm(&json!({
        "image": {"repository": "registry.example.com/mesh/sidetrack", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "pull"}],
        "enroll": "injected",
        "virtualInterfaces": "local-only",
        "meshes": ["istio", "kuma"],
        "cni": {"enabled": true, "binDir": "/b", "confDir": "/c", "excludeNamespaces": ["kube-system", "infra"]},
        "removeTaint": true,
        "defaults": {"dialect": "1.12", "excludeOutboundPorts": [3306, 6379], "proxyUid": 1500},
        "metricsPort": 19446,
        "probePort": 19447,
        "host": {"bpffs": "/bpf", "cgroup": "/cg", "run": "/r"},
        "priorityQuota": true,
        "nodeSelector": {"mesh": "yes"},
        "tolerations": [],
        "podAnnotations": {"a": "b"},
        "seLinuxOptions": {"type": "spc_t"},
    }))
    .expect("the chart");
    for object in &objects {
        parses_strictly(object);
    }
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(
        container["image"],
        "registry.example.com/mesh/sidetrack:1.2.3"
    );
    let arguments = container["args"].to_string();
    for (probe, path) in [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")] {
        let asked = json!({"host": "127.0.0.1", "port": 19447, "path": path});
        assert_eq!(container[probe]["httpGet"], asked);
    }
    for argument in [
        "--enroll=injected",
        "--virtual-interfaces=local-only",
        "--mesh=istio,kuma",
        "--metrics-addr=[::]:19446",
        "--probe-port=19447",
        "--remove-taint",
        "--cni-socket=/r/sidetrack.sock",
        "--cni-exclude-namespaces=kube-system,infra",
    ] {
        assert!(arguments.contains(argument), "{arguments}");
    }
    let mounts = [&container["volumeMounts"], &pod["volumes"]];
    for (place, name) in mounts.into_iter().zip(["/host/cni/net.d", "/c"]) {
        assert!(place.to_string().contains(name), "{place}");
    }
    let role = of_kind(&objects, "ClusterRole").to_string();
    for (verb, _, resource) in USED_FOR_TAINT {
        assert!(role.contains(verb) && role.contains(resource), "{role}");
    }
    assert_eq!(pod["nodeSelector"]["mesh"], "yes");
    assert_eq!(pod["tolerations"], Value::Null);
    assert_eq!(pod["securityContext"]["seLinuxOptions"]["type"], "spc_t");
    let _ = of_kind(&objects, "ResourceQuota");
    // The agent takes the file that the ConfigMap becomes.
    let text = of_kind(&objects, "ConfigMap")["data"]["mesh.yaml"].clone();
    let text = text.as_str().expect("a file");
    let path = Path::new("mesh.yaml");
    let defaults = lab::product::mesh::defaults(&[], Some((path, text))).expect("a configuration");
    let policy = Policy::of_inputs(&defaults).expect("a policy");
    assert_eq!(policy.excluded_outbound_ports, [3306, 6379]);
    assert_eq!(policy.proxy_uids, [1500]);
    assert_eq!(policy.dialect.to_string(), "1.8");
}

#[test]
fn wrong_values_are_refused() {
    for (values, named) in [
        (json!({"enroll": "labelled"}), "enroll"),
        (json!({"enroll": "some"}), "enroll"),
        (
            json!({"defaults": {"excludeOutboundPort": 1}}),
            "excludeOutboundPort",
        ),
        (
            json!({"defaults": {"excludeOutboundPorts": ["mysql"]}}),
            "excludeOutboundPorts",
        ),
        (
            json!({"defaults": {"excludeOutboundPorts": 99_999}}),
            "excludeOutboundPorts",
        ),
        (
            json!({"defaults": {"includeInboundPorts": "80,http"}}),
            "includeInboundPorts",
        ),
        (json!({"defaults": {"statusPort": "65536"}}), "statusPort"),
        (
            json!({"defaults": {"includeOutboundIPRanges": "10.0.0.0/33"}}),
            "includeOutboundIPRanges",
        ),
        (
            json!({"defaults": {"excludeOutboundIPRanges": ["10.0.0"]}}),
            "excludeOutboundIPRanges",
        ),
        (json!({"defaults": {"proxyUid": "envoy"}}), "proxyUid"),
        (json!({"defaults": {"dialect": "new"}}), "dialect"),
        (json!({"defaults": {"dualStack": "yes"}}), "dualStack"),
        (json!({"metricsPort": 0}), "metricsPort"),
        (json!({"probePort": 70_000}), "probePort"),
        (json!({"host": {"bpffs": "sys/fs/bpf"}}), "bpffs"),
        (json!({"cni": {"binDir": "opt/cni/bin"}}), "binDir"),
        (json!({"cni": {"timeoutSeconds": 0}}), "timeoutSeconds"),
        (
            json!({"interceptionProbe": {"interval": "90m"}}),
            "interval",
        ),
        (
            json!({"interceptionProbe": {"interval": "50ms"}}),
            "interval",
        ),
        (json!({"interceptionProbe": {"interval": "0s"}}), "interval"),
        (json!({"webhook": {"enable": true}}), "enable"),
        (
            json!({"webhook": {"failurePolicy": "ignore"}}),
            "failurePolicy",
        ),
        (
            json!({"webhook": {"enabled": true, "certificates": {"from": "secret"}}}),
            "webhook.certificates.secretName",
        ),
    ] {
        let error = helm(&values).expect_err("refused");
        assert!(error.contains(named), "{values}: {error}");
    }
}

/// The way from a directory to the plain manifests: kustomize takes relative paths only.
fn plain_from(dir: &Path) -> String {
    let base = checkout("deploy/kubernetes").display().to_string();
    let up = "../".repeat(dir.components().count() - 1);
    format!("{up}{}", base.trim_start_matches('/'))
}

#[test]
fn a_kustomization_may_change_namespace_and_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let base = plain_from(dir.path());
    let text = format!(
        "kind: Kustomization\nnamespace: mesh\nnameSuffix: -b\nresources: [{base}]\ncomponents: [{base}/components/cni]\n"
    );
    std::fs::write(dir.path().join("kustomization.yaml"), text).expect("write it");
    let objects = kustomize_of(dir.path());
    // The agent asks for the DaemonSet and the ConfigMap of its pod's name, the plugin for the same DaemonSet.
    for role in objects.iter().filter(|object| object["kind"] == "Role") {
        for rule in role["rules"].as_array().expect("rules") {
            assert_eq!(rule["resourceNames"], json!(["sidetrack-b"]), "{role}");
        }
    }
    for kind in [
        "DaemonSet",
        "ConfigMap",
        "ClusterRole",
        "ClusterRoleBinding",
    ] {
        assert_eq!(of_kind(&objects, kind)["metadata"]["name"], "sidetrack-b");
    }
    let account = "kubernetes.io/service-account.name";
    let secret = &of_kind(&objects, "Secret")["metadata"];
    assert_eq!(secret["annotations"][account], "sidetrack-cni-b");
    let daemonset = of_kind(&objects, "DaemonSet");
    assert_eq!(daemonset["metadata"]["namespace"], "mesh");
    let pod = daemonset["spec"]["template"].to_string();
    assert!(!pod.contains("sidetrack-system"), "{pod}");
}

#[test]
fn components_do_what_the_charts_values_do() {
    let webhook = json!({"enabled": true, "certificates": {"from": "cert-manager"}});
    for (components, values) in [
        (&["cni"][..], json!({"cni": {"enabled": true}})),
        (&["cni-remove"], json!({"cni": {"remove": true}})),
        (&["enroll-all"], json!({"enroll": "injected"})),
        (&["taint"], json!({"removeTaint": true})),
        (
            &["interception-probe"],
            json!({"interceptionProbe": {"enabled": true}}),
        ),
        (&["webhook"], json!({"webhook": webhook})),
        (
            &["webhook", "enroll-all"],
            json!({"webhook": webhook, "enroll": "injected"}),
        ),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let base = plain_from(dir.path());
        let replacements = if components.contains(&"webhook") {
            format!("replacements: [{{path: {base}/components/webhook/image.yaml}}]\n")
        } else {
            String::new()
        };
        let components: Vec<String> = components
            .iter()
            .map(|component| format!("{base}/components/{component}"))
            .collect();
        let components = components.join(", ");
        let text = format!(
            "kind: Kustomization\nresources: [{base}]\ncomponents: [{components}]\n{replacements}"
        );
        std::fs::write(dir.path().join("kustomization.yaml"), text).expect("write it");
        let plain = comparable(kustomize_of(dir.path()));
        let plain: Vec<_> = plain
            .into_iter()
            .filter(|object| object["kind"] != "Namespace")
            .collect();
        assert_eq!(
            plain,
            comparable(helm(&values).expect("the chart")),
            "{components}"
        );
    }
}

/// With a policy of its own, whatever the mesh's defaults are, and on the ports that these name.
#[test]
fn the_interception_probes_pod_is_enrolled() {
    let defaults = json!({
        "includeOutboundIPRanges": "10.0.0.0/8", "excludeOutboundPorts": [80], "dialect": "1.1",
        "interceptionMode": "NONE", "outboundPort": 15101, "includeInboundPorts": "",
        "outboundOwnerGroupsExclude": [65532], "excludeInterfaces": ["eth0"],
    });
    let values = json!({"interceptionProbe": {"enabled": true}, "defaults": defaults});
    let objects = helm(&values).expect("the chart");
    let probe = |object: &&Value| object["metadata"]["name"] == "sidetrack-interception-probe";
    let pod = &objects.iter().find(probe).expect("the probe")["spec"]["template"];
    let facts: PodFacts = serde_json::from_value(pod.clone()).expect("a pod");
    let config = of_kind(&objects, "ConfigMap")["data"]["mesh.yaml"].clone();
    let mut mesh = Mesh::new(Enroll::Labeled);
    let file = (Path::new("mesh.yaml"), config.as_str().expect("a text"));
    mesh.defaults = sidetrack_policy::mesh::defaults(&[], Some(file)).expect("defaults");
    let Wanted::Enrolled(policy) = wanted(&facts, None, &mesh) else {
        panic!("{:?}", wanted(&facts, None, &mesh));
    };
    let expected = Policy {
        outbound_port: 15101,
        ..Policy::default()
    };
    assert_eq!(
        (policy.mode, policy.dialect),
        (expected.mode, expected.dialect)
    );
    assert_eq!(policy.outbound, OutboundRanges::All);
    assert!(policy.excluded_outbound_ports.is_empty() && policy.excluded_ranges.is_empty());
    assert_eq!(policy.outbound_port, 15101);
    assert!(policy.included_groups.is_none() && policy.excluded_groups.is_empty());
    assert!(policy.excluded_interfaces.is_empty());
    let InboundPorts::AllExcept(excluded) = &policy.inbound else {
        panic!("{:?}", policy.inbound);
    };
    assert!(
        excluded
            .iter()
            .any(|span| (span.first..=span.last).contains(&15020))
    );
    let sidecar = &pod["spec"]["containers"][1];
    assert_eq!(sidecar["name"], "istio-proxy");
    for argument in ["--outbound-port=15101", "--inbound-port=15006"] {
        assert!(
            sidecar["args"]
                .as_array()
                .expect("words")
                .contains(&json!(argument))
        );
    }
    let other = json!({"interceptionProbe": {"enabled": true}, "meshes": ["linkerd"]});
    assert!(
        helm(&other)
            .expect_err("refused")
            .contains("add istio, or write [auto] alone")
    );
}

#[test]
fn values_of_all_forms_are_accepted() {
    for values in [
        json!({"excludeOutboundPorts": [3306, "6379"], "includeInboundPorts": "*", "statusPort": 0}),
        json!({"excludeOutboundPorts": "3306, 6379", "includeOutboundPorts": "", "statusPort": "15020"}),
        json!({"includeOutboundIPRanges": "*", "excludeOutboundIPRanges": []}),
        json!({"includeOutboundIPRanges": "10.96.0.0/12,fd00::/8", "excludeOutboundIPRanges": "192.0.2.1"}),
        json!({"proxyUid": 1337, "proxyGid": [1337, "2000"], "outboundOwnerGroups": "*"}),
        json!({"dialect": "1.12", "dualStack": true, "accelerate": "false"}),
        json!({"dialect": "current", "excludeInterfaces": ["net1", "tap0"]}),
    ] {
        let objects = helm(&json!({"defaults": values})).expect("accepted by the schema");
        let config = of_kind(&objects, "ConfigMap")["data"]["mesh.yaml"].clone();
        let path = Path::new("mesh.yaml");
        let text = config.as_str().expect("a text");
        sidetrack_policy::mesh::defaults(&[], Some((path, text))).expect("and by the agent");
    }
}

/// `helm upgrade` without `--reset-then-reuse-values` forgets what was set: the plugin's entry would stay on the nodes,
/// and nothing would remove it.
#[test]
fn an_upgrade_does_not_forget_the_plugin() {
    let values =
        |enabled: bool, remove: bool| json!({"cni": {"enabled": enabled, "remove": remove}});
    let mut installed =
        of_kind(&helm(&values(true, false)).expect("the chart"), "DaemonSet").clone();
    let there =
        |installed: &Value| helm_with(&values(false, false), std::slice::from_ref(installed));
    let error = there(&installed).expect_err("refused");
    for cure in ["--reset-then-reuse-values", "cni.remove=true"] {
        assert!(error.contains(cure), "{error}");
    }
    installed["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["agent"]);
    let error = there(&installed).err().unwrap_or_default();
    assert!(!error.contains("cni"), "{error}");
}

/// The same for pods without the label.
#[test]
fn an_upgrade_does_not_forget_whom_to_enroll() {
    let injected = json!({"enroll": "injected"});
    let installed = of_kind(&helm(&injected).expect("the chart"), "DaemonSet").clone();
    let upgrade = |values: Value| {
        let error = helm_with(&values, std::slice::from_ref(&installed)).err();
        error.filter(|error| error.contains("enroll"))
    };
    let error = upgrade(json!({})).expect("refused");
    for cure in ["--reset-then-reuse-values", "enroll=labeled"] {
        assert!(error.contains(cure), "{error}");
    }
    for named in ["injected", "labeled"] {
        assert_eq!(upgrade(json!({"enroll": named})), None);
    }
}

/// Values that are kept from the upgrade that took the plugin away would take it away again.
#[test]
fn the_plugin_is_not_to_be_there_and_removed() {
    let error = helm(&json!({"cni": {"enabled": true, "remove": true}})).expect_err("refused");
    for cure in ["cni.remove=false", "cni.enabled=false"] {
        assert!(error.contains(cure), "{error}");
    }
}

#[test]
fn rbac_lists_what_the_agent_uses_and_no_more() {
    let objects = lab::deploy::plain().expect("the manifests");
    let mut listed = BTreeSet::new();
    for kind in ["ClusterRole", "Role"] {
        for rule in of_kind(&objects, kind)["rules"].as_array().expect("rules") {
            let texts = |field: &str| -> Vec<String> {
                serde_json::from_value(rule[field].clone()).expect("a list of texts")
            };
            for group in texts("apiGroups") {
                for resource in texts("resources") {
                    for verb in texts("verbs") {
                        listed.insert((verb, group.clone(), resource.clone()));
                    }
                }
            }
        }
    }
    let used = USED
        .map(|(verb, group, resource)| (verb.to_owned(), group.to_owned(), resource.to_owned()));
    assert_eq!(listed, used.into_iter().collect());
}

#[test]
fn the_daemonset_asks_for_no_more_than_it_says() {
    let objects = lab::deploy::plain().expect("the manifests");
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let security = &pod["containers"][0]["securityContext"];
    assert_eq!(security["privileged"], Value::Null);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(
        capabilities().expect("capabilities"),
        ["BPF", "PERFMON", "NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE"]
    );
    assert_eq!(pod["hostNetwork"], Value::Null);
    assert_eq!(pod["priorityClassName"], "system-node-critical");
}
