//! What users of other charts expect of this one: labels, pinned images, pods' settings, `helm lint`, `helm test`, notes.

use std::process::Command;

use lab::deploy::checkout;
use serde_json::{Value, json};

use super::{helm, install, of_kind, parses_strictly};

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Ten installations as people have them.
fn installations() -> [(&'static str, Value); 10] {
    let monitor = json!({"enabled": true, "interval": "15s", "labels": {"release": "prometheus"}});
    [
        ("defaults", json!({})),
        (
            "private registry",
            json!({"image": {"repository": "registry.example.com/mesh/sidetrack", "tag": "1.2.3", "digest": DIGEST},
                "imagePullSecrets": [{"name": "pull"}]}),
        ),
        (
            "production",
            json!({"enroll": "injected", "cni": {"enabled": true}, "removeTaint": true, "priorityQuota": true,
                "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}}}),
        ),
        (
            "plugin removed",
            json!({"cni": {"enabled": false, "remove": true}}),
        ),
        (
            "webhook of its own certificates",
            json!({"webhook": {"enabled": true, "replicas": 3, "failurePolicy": "Fail",
                "tolerations": [{"operator": "Exists"}], "extraEnv": [{"name": "RUST_LOG", "value": "debug"}]}}),
        ),
        (
            "webhook with cert-manager",
            json!({"webhook": {"enabled": true, "priorityClassName": "high", "certificates": {"from": "cert-manager",
                "issuerRef": {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "internal"}}}}),
        ),
        (
            "monitoring",
            json!({"monitoring": {"metricsPerPod": 100, "podMonitor": monitor, "rules": {"enabled": true},
                "dashboard": {"enabled": true}, "networkPolicy": {"enabled": true,
                "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]}}}),
        ),
        (
            "settings of pods",
            json!({"podAnnotations": {"a": "b"}, "podLabels": {"team": "mesh"}, "commonLabels": {"cost-center": "7"},
                "extraEnv": [{"name": "RUST_LOG", "value": "info"}, {"name": "HOST", "valueFrom":
                {"fieldRef": {"fieldPath": "status.hostIP"}}}], "nodeSelector": {"mesh": "yes"}, "tolerations": [],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
                [{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}]}]}}},
                "resources": {"requests": {"cpu": "50m"}}, "priorityClassName": "", "updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}),
        ),
        (
            "other paths and SELinux",
            json!({"host": {"bpffs": "/bpf", "cgroup": "/cg", "run": "/var/run/sidetrack"},
                "seLinuxOptions": {"type": "spc_t"}, "logFormat": "text", "metricsPort": 19446}),
        ),
        (
            "an old mesh",
            json!({"meshes": ["istio"], "defaults": {"dialect": "1.6", "excludeOutboundPorts": [3306], "includeOutboundIPRanges": "10.0.0.0/8"},
                "virtualInterfaces": "local-only", "tests": {"enabled": false}}),
        ),
    ]
}

#[test]
fn ten_installations_are_what_the_api_takes() {
    for (name, values) in installations() {
        let rendered = install(&values, &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        for object in &rendered.objects {
            parses_strictly(object);
            let labels = &object["metadata"]["labels"];
            for label in ["name", "instance", "version", "part-of", "managed-by"] {
                let label = format!("app.kubernetes.io/{label}");
                assert!(labels[&label].is_string(), "{name}: {label} of {object}");
            }
            assert_eq!(labels["helm.sh/chart"], "sidetrack-0.1.0", "{name}");
        }
        assert!(
            rendered.notes.contains("helm uninstall sidetrack"),
            "{name}"
        );
        // What the notes say of the plugin is what the values do.
        let has_plugin = rendered.notes.contains("The CNI plugin makes pods wait");
        assert_eq!(has_plugin, values["cni"]["enabled"] == true, "{name}");
    }
}

/// The severity of findings that `helm lint` shows as INFO, such as a chart without an icon.
const INFO: u64 = 1;

#[test]
fn helm_lint_finds_nothing() {
    const LINT: &str = "\
        import asyncio, json, sys\n\
        from helm_sdkpy import Configuration, Lint\n\
        print(json.dumps(asyncio.run(Lint(Configuration()).run(sys.argv[1]))))";
    let output = Command::new(checkout("target/tools/python/bin/python"))
        .args(["-c", LINT])
        .arg(checkout("deploy/chart"))
        .output()
        .expect("Python; `cargo xtask setup` installs it");
    let result: Value = serde_json::from_slice(&output.stdout).expect("what Helm found");
    assert_eq!(result["Errors"], json!(null), "{result}");
    let messages = result["Messages"].as_array().expect("messages");
    let is_info = |message: &Value| message["Severity"].as_u64() <= Some(INFO);
    assert!(messages.iter().all(is_info), "{result}");
}

/// A selector cannot be changed: with the chart's version in it an upgrade would be refused.
#[test]
fn selectors_are_the_same_in_all_versions() {
    let values =
        json!({"webhook": {"enabled": true}, "podLabels": {"a": "b"}, "commonLabels": {"c": "d"}});
    let objects = helm(&values).expect("the chart");
    for (kind, name) in [
        ("DaemonSet", "sidetrack"),
        ("Deployment", "sidetrack-webhook"),
    ] {
        let object = of_kind(&objects, kind);
        let labels =
            json!({"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "sidetrack"});
        assert_eq!(object["spec"]["selector"]["matchLabels"], labels);
        let pod = &object["spec"]["template"]["metadata"]["labels"];
        assert_eq!(pod["a"], "b");
        assert_eq!(object["metadata"]["labels"]["c"], "d");
    }
}

#[test]
fn a_digest_pins_every_image() {
    let values = json!({"image": {"repository": "r.example.com/sidetrack", "digest": DIGEST}, "webhook": {"enabled": true}});
    let rendered = install(&values, &[]).expect("the chart");
    let image = format!("r.example.com/sidetrack:0.1.0@{DIGEST}");
    for kind in ["DaemonSet", "Deployment"] {
        let pod = &of_kind(&rendered.objects, kind)["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], image);
    }
    let webhook = of_kind(&rendered.objects, "Deployment").to_string();
    assert!(
        webhook.contains(&format!("--gate-image={image}")),
        "{webhook}"
    );
    assert!(rendered.hooks[0].contains(&image), "{:?}", rendered.hooks);
    for digest in ["sha256:abc", "latest"] {
        let error = helm(&json!({"image": {"digest": digest}})).expect_err("refused");
        assert!(error.contains("digest"), "{error}");
    }
}

#[test]
fn settings_of_pods_take_effect() {
    let values = json!({"extraEnv": [{"name": "RUST_LOG", "value": "debug"}], "updateStrategy": {"type": "OnDelete", "rollingUpdate": null},
        "tolerations": [{"key": "a", "operator": "Exists"}]});
    let objects = helm(&values).expect("the chart");
    let agents = &of_kind(&objects, "DaemonSet")["spec"];
    assert_eq!(agents["updateStrategy"], json!({"type": "OnDelete"}));
    let pod = &agents["template"]["spec"];
    let variables = pod["containers"][0]["env"].as_array().expect("variables");
    assert!(variables.contains(&json!({"name": "RUST_LOG", "value": "debug"})));
    assert_eq!(
        pod["tolerations"],
        json!([{"key": "a", "operator": "Exists"}])
    );
    // One agent of a node holds the lock of its state: a second one beside it does not become ready.
    let surge = json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}});
    assert!(helm(&surge).expect_err("refused").contains("maxSurge"));
}

#[test]
fn helm_test_asks_an_agent_and_needs_no_privilege() {
    let rendered = install(
        &json!({"host": {"run": "/r"}, "nodeSelector": {"mesh": "yes"}}),
        &[],
    );
    let rendered = rendered.expect("the chart");
    let [hook] = &rendered.hooks[..] else {
        panic!("{:?}", rendered.hooks)
    };
    let pod: Value = serde_saphyr::from_str(hook).expect("YAML");
    parses_strictly(&pod);
    assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
    assert_eq!(pod["spec"]["nodeSelector"]["mesh"], "yes");
    assert_eq!(pod["spec"]["volumes"][0]["hostPath"]["path"], "/r");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(
        container["command"],
        json!(["sidetrack", "status", "--check"])
    );
    let capabilities = &container["securityContext"]["capabilities"];
    assert_eq!(capabilities, &json!({"drop": ["ALL"]}));
    let without = install(&json!({"tests": {"enabled": false}}), &[]).expect("the chart");
    assert_eq!(without.hooks, [""; 0]);
}

#[test]
fn a_tag_may_be_a_number() {
    for (tag, written) in [
        (json!(20_261_127), "20261127"),
        (json!("1.10"), "1.10"),
        (json!(1.5), "1.5"),
        (json!(""), env!("CARGO_PKG_VERSION")),
    ] {
        let objects = helm(&json!({"image": {"tag": tag}})).expect("accepted by the schema");
        let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
        let image = pod["containers"][0]["image"].to_string();
        assert!(image.ends_with(&format!(":{written}\"")), "{image}");
    }
}

#[test]
fn ambient_mode_alone_has_what_it_needs() {
    let settings = |enabled: bool| {
        let values = json!({"ambient": {"enabled": enabled, "runDir": "/var/run/other"}});
        let objects = helm(&values).expect("accepted by the schema");
        let role = of_kind(&objects, "ClusterRole")["rules"].to_string();
        let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
        let agent = pod["containers"][0].clone();
        [
            role.contains(r#""resources":["pods/status"],"verbs":["patch"]"#),
            agent["args"].to_string().contains("\"--ambient\""),
            agent["args"]
                .to_string()
                .contains("\"--ztunnel-socket=/host/ztunnel/ztunnel.sock\""),
            agent["volumeMounts"]
                .to_string()
                .contains("\"/host/ztunnel\""),
            pod["volumes"].to_string().contains("\"/var/run/other\""),
        ]
    };
    assert_eq!(settings(true), [true; 5]);
    assert_eq!(settings(false), [false; 5]);
}
