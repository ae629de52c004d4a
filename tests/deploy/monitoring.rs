//! What the chart makes for Prometheus and Grafana.

use std::fs;

use lab::deploy::checkout;
use serde_json::{Value, json};

use super::{helm, install_in, of_kind, parses_strictly};

/// The kinds that the chart has only for monitoring.
const KINDS: [&str; 4] = [
    "PodMonitor",
    "ServiceMonitor",
    "PrometheusRule",
    "NetworkPolicy",
];

fn rendered(monitoring: Value) -> Vec<Value> {
    let values = json!({"metricsPort": 19446, "monitoring": monitoring});
    let objects = helm(&values).expect("the chart");
    for object in &objects {
        parses_strictly(object);
    }
    objects
}

fn agent_labels(objects: &[Value]) -> &Value {
    &of_kind(objects, "DaemonSet")["spec"]["selector"]["matchLabels"]
}

#[test]
fn nothing_unless_it_is_asked_for() {
    let objects = helm(&json!({})).expect("the chart");
    for kind in KINDS {
        assert!(
            objects.iter().all(|object| object["kind"] != kind),
            "{kind}"
        );
    }
    let arguments = of_kind(&objects, "DaemonSet").to_string();
    assert!(!arguments.contains("--metrics-per-pod"), "{arguments}");
}

#[test]
fn everything_with_a_pod_monitor() {
    let from = json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
    let objects = rendered(json!({
        "metricsPerPod": 200,
        "podMonitor": {"enabled": true, "interval": "15s", "labels": {"release": "prometheus"}},
        "rules": {"enabled": true, "labels": {"role": "alerts"}},
        "dashboard": {"enabled": true},
        "networkPolicy": {"enabled": true, "from": from},
    }));
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"];
    let arguments = pod["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains("--metrics-per-pod=200"), "{arguments}");
    let ports = &pod["spec"]["containers"][0]["ports"];
    assert_eq!(ports[0]["name"], "metrics");

    let monitor = of_kind(&objects, "PodMonitor");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    let spec = &monitor["spec"];
    assert_eq!(&spec["selector"]["matchLabels"], agent_labels(&objects));
    let endpoint = &spec["podMetricsEndpoints"][0];
    assert_eq!(endpoint["port"], "metrics");
    assert_eq!(endpoint["path"], "/metrics");
    assert_eq!(endpoint["interval"], "15s");
    // Else the labels of single pods would become exported_namespace and exported_pod.
    assert_eq!(endpoint["honorLabels"], true);

    let policy = of_kind(&objects, "NetworkPolicy");
    let spec = &policy["spec"];
    assert_eq!(&spec["podSelector"]["matchLabels"], agent_labels(&objects));
    assert_eq!(spec["ingress"][0]["ports"][0]["port"], "metrics");
    assert_eq!(spec["ingress"][0]["from"], from);
}

#[test]
fn a_service_monitor_with_its_service() {
    let objects = rendered(json!({"serviceMonitor": {"enabled": true}}));
    let service = of_kind(&objects, "Service");
    assert_eq!(&service["spec"]["selector"], agent_labels(&objects));
    assert_eq!(service["spec"]["ports"][0]["port"], 19446);
    // The alert on agents that are not ready needs their metrics.
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    let monitor = &of_kind(&objects, "ServiceMonitor")["spec"];
    let selected = monitor["selector"]["matchLabels"]
        .as_object()
        .expect("labels");
    let labels = service["metadata"]["labels"].as_object().expect("labels");
    for (label, value) in selected {
        assert_eq!(labels.get(label), Some(value));
    }
    assert_eq!(
        monitor["endpoints"][0]["port"],
        service["spec"]["ports"][0]["name"]
    );
}

/// Their files are links to these.
#[test]
fn alerts_and_dashboard_are_those_of_deploy_monitoring() {
    let objects = rendered(json!({"rules": {"enabled": true}, "dashboard": {"enabled": true}}));
    let read =
        |name: &str| fs::read_to_string(checkout("deploy/monitoring").join(name)).expect(name);
    let alerts: Value = serde_saphyr::from_str(&read("alerts.yaml")).expect("YAML");
    assert_eq!(of_kind(&objects, "PrometheusRule")["spec"], alerts);
    let values = json!({"monitoring": {"rules": {"enabled": true}}});
    let elsewhere = install_in("mesh", &values, &[]).expect("the chart").objects;
    let text = of_kind(&elsewhere, "PrometheusRule").to_string();
    assert!(
        text.contains("kubectl -n mesh ") && !text.contains("sidetrack-system"),
        "{text}"
    );
    let maps = objects
        .iter()
        .filter(|object| object["kind"] == "ConfigMap");
    let found = maps.filter(|map| map["metadata"]["name"] == "sidetrack-dashboard");
    let [map] = found.collect::<Vec<_>>()[..] else {
        panic!("one dashboard");
    };
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let text = map["data"]["sidetrack.json"].as_str().expect("a text");
    let shown: Value = serde_json::from_str(text).expect("JSON");
    let file: Value = serde_json::from_str(&read("dashboard.json")).expect("JSON");
    assert_eq!(shown, file);
}

#[test]
fn an_open_policy_names_no_source() {
    let objects = rendered(json!({"networkPolicy": {"enabled": true}}));
    let ingress = &of_kind(&objects, "NetworkPolicy")["spec"]["ingress"][0];
    assert_eq!(ingress["from"], Value::Null);
}

#[test]
fn wrong_values_are_refused() {
    for (monitoring, named) in [
        (json!({"metricsPerPod": -1}), "metricsPerPod"),
        (json!({"metricsPerPod": 5000}), "metricsPerPod"),
        (json!({"podMonitor": {"enabled": "yes"}}), "enabled"),
        (json!({"podMonitor": {"interval": "often"}}), "interval"),
        (json!({"rules": {"labels": {"a": 1}}}), "labels"),
        (json!({"networkPolicy": {"from": "monitoring"}}), "from"),
        (json!({"grafana": true}), "grafana"),
        (
            json!({"podMonitor": {"enabled": true}, "serviceMonitor": {"enabled": true}}),
            "twice",
        ),
    ] {
        let error = helm(&json!({"monitoring": monitoring})).expect_err("refused");
        assert!(error.contains(named), "{monitoring}: {error}");
    }
}
