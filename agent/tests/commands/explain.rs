//! `explain` offline.

use serde_json::{Value, json};

use crate::run::{piped, run, workload};

/// Explains a connection of a workload.
fn explain(manifest: &str, words: &[&str]) -> crate::run::Ended {
    piped(&[&["explain", "--manifest", "-"], words].concat(), manifest)
}

fn verdict(manifest: &str, words: &[&str]) -> Value {
    explain(manifest, &[words, &["-o", "json"]].concat()).json()
}

#[test]
fn flags_that_a_running_pod_does_not_know() {
    for flags in [
        &["--default", "excludeOutboundPorts=80"][..],
        &["--config", "/nowhere"],
        &["--accelerate"],
        &["--virtual-interfaces", "refuse"],
        &["--pod-ip", "10.0.0.1"],
        &["--enroll", "labeled"],
    ] {
        let inbound = ["explain", "a/b", "inbound", "--dst", "10.0.0.1:80"];
        for words in [&inbound[..], &["rules", "a/b"]] {
            let ended = run(&[words, flags].concat());
            let error = ended.error(2);
            assert!(
                error.contains(flags[0]) && error.contains("--manifest FILE"),
                "{error}"
            );
        }
    }
    let excluded = [
        "--default",
        "excludeOutboundPorts=80",
        "outbound",
        "--dst",
        "10.9.9.9:80",
    ];
    assert_eq!(
        verdict(&workload("Pod", "a", ""), &excluded)["verdict"],
        "untouched"
    );
    assert!(run(&["rules"]).error(2).contains("name a pod"));
}

#[test]
fn ipv6_depends_on_the_pods_addresses() {
    let deployment = workload("Deployment", "web", "");
    let to = |words: &[&str]| {
        verdict(
            &deployment,
            &[words, &["outbound", "--dst", "[fd00::9]:80"]].concat(),
        )
    };
    let unknown = to(&[]);
    assert_eq!(unknown["verdict"], "depends", "{unknown}");
    let cases: Vec<&Value> = unknown["cases"]
        .as_array()
        .expect("both cases")
        .iter()
        .map(|case| &case["verdict"])
        .collect();
    assert_eq!(cases, ["redirect", "untouched"], "{unknown}");
    assert_eq!(to(&["--pod-ip", "fd00::1"])["verdict"], "redirect");
    assert_eq!(to(&["--pod-ip", "10.0.0.1"])["verdict"], "untouched");
    assert_eq!(
        to(&["--pod-ip", "10.0.0.1", "--pod-ip", "fd00::1"])["verdict"],
        "untouched"
    );
    let text = explain(&deployment, &["outbound", "--dst", "[fd00::9]:80"]);
    let text = text.text();
    assert!(
        text.contains("depends on the pod's addresses")
            && text.contains("--pod-ip IP")
            && text.contains("redirect to 15001, if"),
        "{text}"
    );
    // What is untouched in both cases does not depend on them, nor does IPv4.
    let excluded = [
        "--default",
        "excludeOutboundPorts=80",
        "outbound",
        "--dst",
        "[fd00::9]:80",
    ];
    assert_eq!(verdict(&deployment, &excluded)["verdict"], "untouched");
    assert_eq!(
        verdict(&deployment, &["outbound", "--dst", "10.9.9.9:80"])["verdict"],
        "redirect"
    );
    let rules = piped(&["rules", "-6", "--manifest", "-"], &deployment);
    assert!(rules.text().contains("pass --pod-ip IP"), "{rules:?}");
}

#[test]
fn whether_agents_would_enroll_it() {
    let enrollment = |manifest: &str, flags: &[&str]| {
        let words = [flags, &["inbound", "--dst", "10.0.0.1:80"]].concat();
        verdict(manifest, &words)["enrollment"].clone()
    };
    let plain = workload("Deployment", "web", "");
    let labeled = workload(
        "Deployment",
        "web",
        "labels: {sidetrack.dev/interception: enabled}",
    );
    assert_eq!(enrollment(&labeled, &[])["enrolled"], true);
    assert_eq!(
        enrollment(&plain, &["--enroll", "injected"])["enrolled"],
        true
    );
    let depends = enrollment(&plain, &[]);
    assert_eq!(depends["enrolled"], Value::Null);
    assert!(
        depends["condition"]
            .to_string()
            .contains("only if namespace default is labeled"),
        "{depends}"
    );
    let bare =
        "{kind: Deployment, metadata: {name: web}, spec: {template: {spec: {containers: []}}}}";
    for (manifest, reason) in [
        (bare, "because it has no sidecar"),
        (bare, "istioctl kube-inject"),
        (
            &workload("Pod", "a", "labels: {sidetrack.dev/interception: disabled}"),
            "because label",
        ),
    ] {
        let ended = explain(manifest, &["inbound", "--dst", "10.0.0.1:80"]);
        assert!(ended.error(1).contains(reason), "{ended:?}");
    }
}

#[test]
fn who_connects_may_be_omitted() {
    let pod = workload("Pod", "a", "");
    let by = |words: &[&str]| {
        verdict(
            &pod,
            &[&["outbound", "--dst", "10.9.9.9:80"], words].concat(),
        )
    };
    let app = by(&[]);
    assert_eq!(app["verdict"], "redirect");
    assert_eq!(
        app["owner"],
        json!({"uid": 1000, "gid": 1000, "assumed": true})
    );
    assert_eq!(by(&["--uid", "1337"])["verdict"], "untouched");
    assert_eq!(by(&["--uid", "0", "--gid", "0"])["owner"]["assumed"], false);
    let text = explain(&pod, &["outbound", "--dst", "10.9.9.9:80"]);
    assert!(text.text().contains("owner    an application"), "{text:?}");
    let text = explain(
        &pod,
        &[
            "outbound",
            "--dst",
            "10.9.9.9:80",
            "--uid",
            "0",
            "--gid",
            "0",
        ],
    );
    assert!(!text.text().contains("owner"), "{text:?}");
}

#[test]
fn host_names() {
    let pod = workload("Pod", "a", "");
    let local = verdict(&pod, &["outbound", "--dst", "localhost:80"]);
    assert_eq!(local["verdict"], "untouched", "{local}");
    assert_eq!(
        local["resolved"][0]
            .as_str()
            .map(|ip| local["destination"].to_string().contains(ip)),
        Some(true)
    );
    let text = explain(&pod, &["outbound", "--dst", "localhost:80"]);
    assert!(
        text.text().contains("address  localhost:80 is "),
        "{text:?}"
    );
    let ended = explain(&pod, &["outbound", "--dst", "nowhere.invalid:80"]);
    assert!(
        ended.error(1).contains("pass the address as --dst IP:PORT"),
        "{ended:?}"
    );
    let ended = explain(&pod, &["outbound", "--dst", "fd00::1:80"]);
    assert!(ended.error(2).contains("write [fd00::1]:80"), "{ended:?}");
}

#[test]
fn a_mesh_without_ipv6_leaves_it_alone_whatever_the_addresses() {
    let pod = r#"{"kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]}}"#;
    let to = |words: &[&str], destination: &str| {
        let outbound = ["outbound", "--dst", destination];
        verdict(pod, &[words, &outbound].concat())["verdict"].clone()
    };
    for addresses in [&[][..], &["--pod-ip", "fd00::1"]] {
        assert_eq!(to(addresses, "[fd00::9]:80"), "untouched");
        assert_eq!(to(addresses, "10.0.0.9:80"), "redirect");
    }
    let rules = piped(&["rules", "-6", "--manifest", "-"], pod);
    let text = rules.text();
    assert!(text.contains("are not redirected"), "{text}");
}

#[test]
fn the_verdict_of_a_query_says_that_servers_are_missing() {
    let pod = r#"{"kind": "Pod", "metadata": {"name": "a"}, "spec": {
        "initContainers": [{"name": "istio-init", "args": ["istio-iptables", "-p", "15001", "-z", "15006",
            "-u", "1337", "-m", "REDIRECT", "-i", "*", "-b", "*", "--redirect-dns"]}],
        "containers": [{"name": "app"}, {"name": "istio-proxy"}]}}"#;
    let to = |words: &[&str], port: u16| {
        let destination = format!("10.96.0.10:{port}");
        verdict(pod, &[words, &["outbound", "--dst", &destination]].concat())
    };
    let unknown = to(&[], 53);
    assert_eq!(unknown["port"], 15053, "{unknown}");
    let remark = unknown["remark"].as_str().unwrap_or_default();
    assert!(remark.contains("--dns-server"), "{unknown}");
    for known in [to(&["--dns-server", "10.96.0.10"], 53), to(&[], 80)] {
        assert!(known["remark"].is_null(), "{known}");
    }
}

#[test]
fn addresses_of_redirected_connections_are_refused() {
    let pod = workload("Pod", "a", "");
    let to = |destination: &str| verdict(&pod, &["outbound", "--dst", destination]);
    let refused = to("127.130.0.1:15001");
    assert_eq!(refused["name"], "unknown-target", "{refused}");
    for other in ["127.130.0.1:80", "127.0.0.9:15001"] {
        assert_eq!(to(other)["verdict"], "untouched", "{other}");
    }
}
