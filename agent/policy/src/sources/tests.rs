//! Who the proxy of an Istio pod is, and what is excluded, by the mode of the pod.

use ipnet::IpNet;
use serde_json::{Value, json};
use sidetrack_common::addr::Family;

use crate::{
    facts::PodFacts,
    fixture::of_pod,
    inputs::{Input, Inputs},
    policy::{DnsCapture, OutboundRanges, Policy},
};

/// A pod with a container of the injector's instead of istio-init, or with istio-init itself.
fn pod(init: Value, proxy: Value, of_pod: Value) -> PodFacts {
    let mut sidecar = json!({"name": "istio-proxy", "image": "proxyv2:1.28.0"});
    sidecar["securityContext"] = proxy;
    let pod = json!({
        "spec": {
            "securityContext": of_pod,
            "initContainers": [init],
            "containers": [{"name": "app"}, sidecar],
        },
    });
    serde_json::from_value(pod).expect("a pod")
}

fn check(words: &[&str]) -> Value {
    json!({"name": "istio-validation", "args": words})
}

fn owners(policy: &Policy) -> (&[u32], &[u32]) {
    (&policy.proxy_uids, &policy.proxy_gids)
}

/// As istio-cni has it: `securityContext`, then 1337. What istio-validation's arguments say counts where it is missing.
#[test]
fn owners_without_istio_init() {
    let none = Value::Null;
    let runs_as = |user: u32, group: u32| json!({"runAsUser": user, "runAsGroup": group});
    let user = |user: u32| json!({"runAsUser": user});
    let group = |group: u32| json!({"runAsGroup": group});
    for (words, proxy, of, uid, gid) in [
        (
            &[][..],
            runs_as(1_000_720_000, 1_000_720_001),
            none.clone(),
            1_000_720_000,
            1_000_720_001,
        ),
        (&[], user(1234), none.clone(), 1234, 1337),
        (&[], user(1234), runs_as(5, 6), 1234, 1337),
        (&[], user(0), runs_as(5, 6), 1337, 1337),
        (&[], none.clone(), runs_as(5, 6), 5, 6),
        (&[], none.clone(), runs_as(0, 0), 1337, 1337),
        (&[], group(7), user(5), 5, 7),
        (&[], none.clone(), none.clone(), 1337, 1337),
        (&["-u", "2000"], none.clone(), none.clone(), 2000, 2000),
        (
            &["-u", "2000", "-g", "3000"],
            none.clone(),
            none.clone(),
            2000,
            3000,
        ),
        (
            &["-u", "1337", "-g", "3000"],
            user(2000),
            none.clone(),
            2000,
            3000,
        ),
    ] {
        let case = format!("{words:?} {proxy} {of}");
        let pod = pod(check(words), proxy, of);
        let policy = of_pod(&pod).expect("a policy");
        assert_eq!(owners(&policy), (&[uid][..], &[gid][..]), "{case}");
        let is_assumed = uid == 1337;
        let remarks = &policy.remarks;
        assert_eq!(
            remarks.len(),
            usize::from(is_assumed),
            "{case}: {remarks:?}"
        );
        if is_assumed {
            assert!(remarks[0].contains("1337 is assumed"), "{remarks:?}");
            assert!(policy.notes().contains(&remarks[0]));
        }
    }
}

#[test]
fn ports_of_istio_validation_count_and_its_lists_do_not() {
    let words = [
        "istio-iptables",
        "-p",
        "25001",
        "-z",
        "25006",
        "-e",
        "25008",
        "-u",
        "1337",
        "-x",
        "10.0.0.0/8",
        "-b",
        "80",
        "-m",
        "TPROXY",
        "--run-validation",
        "--skip-rule-apply",
    ];
    let policy = of_pod(&pod(check(&words), Value::Null, Value::Null)).expect("a policy");
    let ports = [
        policy.outbound_port,
        policy.inbound_port,
        policy.tunnel_port,
    ];
    assert_eq!(ports, [25001, 25006, 25008]);
    let plain = of_pod(&pod(check(&[]), Value::Null, Value::Null)).expect("a policy");
    let same = Policy {
        outbound_port: plain.outbound_port,
        inbound_port: plain.inbound_port,
        tunnel_port: plain.tunnel_port,
        ..policy
    };
    assert!(same.has_rules_of(&plain), "{same:?}");
    let problem = of_pod(&pod(check(&["-u"]), Value::Null, Value::Null)).expect_err("a problem");
    assert_eq!(problem[0].origin, "the command line of istio-validation");
}

/// istio-cni excludes its port where the annotation is absent; istio-init does not.
#[test]
fn the_excluded_outbound_port_follows_the_mode() {
    let excluded = |pod: &PodFacts| of_pod(pod).expect("a policy").excluded_outbound_ports;
    let cni = pod(check(&[]), Value::Null, Value::Null);
    assert_eq!(excluded(&cni), [15020]);
    let init = json!({"name": "istio-init", "args": ["-p", "15001", "-u", "1337"]});
    let with_init = pod(init, json!({"runAsUser": 2000}), Value::Null);
    assert_eq!(excluded(&with_init), [0; 0]);
    for (annotation, expected) in [("", &[][..]), ("3306", &[3306])] {
        let mut pod = serde_json::to_value(json!({
            "spec": {"containers": [{"name": "istio-proxy"}]},
        }))
        .expect("JSON");
        pod["metadata"] =
            json!({"annotations": {"traffic.sidecar.istio.io/excludeOutboundPorts": annotation}});
        assert_eq!(
            excluded(&serde_json::from_value(pod).expect("a pod")),
            expected
        );
    }
    let mut defaults = Inputs::default();
    defaults.set(Input::OutboundPortsExclude, "5432", "a default".to_owned());
    let policy = Policy::of_pod(&cni, &defaults).expect("a policy");
    assert_eq!(policy.excluded_outbound_ports, [5432]);
}

#[test]
fn a_sidecar_that_the_rules_do_not_leave_alone_is_named() {
    let init = |args: &[&str]| json!({"name": "istio-init", "args": args});
    let remarks = |args: &[&str], runs_as: Value| {
        let policy = of_pod(&pod(init(args), runs_as, Value::Null));
        policy.expect("a policy").remarks
    };
    let user = |user: u32| json!({"runAsUser": user, "runAsGroup": user});
    let other = remarks(&["-u", "1337"], user(2000));
    assert!(other[0].contains("user 2000"), "{other:?}");
    assert_eq!(remarks(&["-u", "2000"], user(2000)), [""; 0]);
    assert_eq!(remarks(&["-u", "1337", "-g", "2000"], user(2000)), [""; 0]);
    // istio-init's own default, which is no assumption.
    assert_eq!(remarks(&[], Value::Null), [""; 0]);
}

#[test]
fn an_injector_lists_a_port_once() {
    let pod: PodFacts = serde_json::from_value(json!({
        "metadata": {"annotations": {
            "traffic.sidecar.istio.io/excludeInboundPorts": "8080,15020,15090,8080",
        }},
        "spec": {"containers": [{"name": "istio-proxy"}]},
    }))
    .expect("a pod");
    let inbound = of_pod(&pod).expect("a policy").inbound;
    let expected = crate::InboundPorts::AllExcept(crate::spans(vec![15090, 15021, 8080, 15020]));
    assert_eq!(inbound, expected);
}

#[test]
fn istio_cni_captures_queries_to_any_server() {
    let sidecar = json!({
        "name": "istio-proxy", "env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}],
    });
    let pod = json!({"spec": {"containers": [sidecar]}});
    let pod: PodFacts = serde_json::from_value(pod).expect("a pod");
    assert_eq!(of_pod(&pod).expect("a policy").dns, DnsCapture::All);
}

/// A pod with an istio-init.
fn with_init(args: &[&str], env: &[(&str, &str)]) -> PodFacts {
    let env: Vec<Value> = env
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    pod(
        json!({"name": "istio-init", "args": args, "env": env}),
        Value::Null,
        Value::Null,
    )
}

fn texts(ports: &[crate::Span]) -> Vec<String> {
    ports.iter().map(ToString::to_string).collect()
}

/// As iptables takes them after `--dport`. In annotations the injector refuses them.
#[test]
fn ranges_of_ports_in_arguments() {
    let args = [
        "-o",
        "10000:20000,53,:1023",
        "-d",
        "15020,8000:9000",
        "-q",
        "1024:2048",
        "-b",
        "*",
    ];
    let policy = of_pod(&with_init(&args, &[])).expect("a policy");
    assert_eq!(
        texts(&policy.excluded_outbound_ports),
        ["10000-20000", "53", "0-1023"]
    );
    assert_eq!(texts(&policy.included_outbound_ports), ["1024-2048"]);
    let text = crate::rules::restore(&policy, Family::V4);
    for line in [
        "-A ISTIO_OUTPUT -p tcp -m tcp --dport 10000:20000 -j RETURN",
        "-A ISTIO_OUTPUT -p tcp -m tcp --dport 0:1023 -j RETURN",
        "-A ISTIO_INBOUND -p tcp -m tcp --dport 8000:9000 -j RETURN",
        "-A ISTIO_OUTPUT -p tcp -m tcp --dport 1024:2048 -j ISTIO_REDIRECT",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in {text}");
    }
    let listed = of_pod(&with_init(&["-b", "80,8000:8002"], &[])).expect("a policy");
    let rows: Vec<_> = listed
        .compile()
        .port_rows(0)
        .map(|(key, at)| (key.port, at))
        .collect();
    assert_eq!(rows, [(80, 0), (8000, 1), (8001, 1), (8002, 1)]);
    let policy_of = |args: &[&str]| of_pod(&with_init(args, &[]));
    for (args, problem) in [
        (["-o", "9:8"], "\"9:8\" is not a port"),
        (["-o", "8-9"], "\"8-9\" is not a port"),
        (["-o", "http"], "\"http\" is not a port"),
        (["-o", "1:65536"], "\"1:65536\" is not a port"),
        // A row each.
        (["-q", "1:16385"], "its ranges have 16385 ports"),
        (["-b", "1:65535"], "its ranges have 65535 ports"),
    ] {
        let found = policy_of(&args).expect_err("a problem");
        assert!(found[0].problem.contains(problem), "{args:?}: {found:?}");
    }
    assert!(policy_of(&["-o", "0:65535"]).is_ok() && policy_of(&["-q", "1:16384"]).is_ok());
    let annotation = ("traffic.sidecar.istio.io/excludeOutboundPorts", "8000:9000");
    let found = of_pod(&crate::fixture::annotated(&[annotation])).expect_err("a problem");
    assert!(
        found[0].problem.contains("\"8000:9000\" is not a port"),
        "{found:?}"
    );
}

/// istio-iptables ignores what is no CIDR, also an address without a length; the injector and istio-cni refuse it.
#[test]
fn entries_that_are_no_cidr() {
    let ranges = |ranges: &[&str]| {
        ranges
            .iter()
            .map(|it| it.parse().expect("a range"))
            .collect()
    };
    for (flag, value, only, excluded, is_named) in [
        (
            "-x",
            "169.254.169.254,10.0.0.0/8",
            None,
            vec!["10.0.0.0/8"],
            true,
        ),
        ("-i", "*,10.0.0.0/8", Some(vec!["10.0.0.0/8"]), vec![], true),
        ("-i", "example.com", Some(vec![]), vec![], true),
        ("-i", "*", None, vec![], false),
        (
            "-i",
            "10.0.0.0/8, fd00::/8,",
            Some(vec!["10.0.0.0/8", "fd00::/8"]),
            vec![],
            false,
        ),
    ] {
        let policy = of_pod(&with_init(&[flag, value], &[])).expect("a policy");
        let outbound = only.map_or(OutboundRanges::All, |only| {
            OutboundRanges::Only(ranges(&only))
        });
        assert_eq!(policy.outbound, outbound, "{flag} {value}");
        let excluded: Vec<IpNet> = ranges(&excluded);
        assert_eq!(policy.excluded_ranges, excluded, "{flag} {value}");
        assert_eq!(
            policy.remarks.len(),
            usize::from(is_named),
            "{:?}",
            policy.remarks
        );
    }
    // Alone it is an error of istio-iptables as well.
    assert!(of_pod(&with_init(&["-x", "*"], &[])).is_err());
    for name in ["excludeOutboundIPRanges", "includeOutboundIPRanges"] {
        for value in ["169.254.169.254", "*,10.0.0.0/8", "example.com"] {
            let name = format!("traffic.sidecar.istio.io/{name}");
            let found = of_pod(&crate::fixture::annotated(&[(&name, value)]));
            assert!(found.is_err(), "{name}: {value}");
        }
    }
}

/// Every flag has a variable, which is weaker than the flag.
#[test]
fn variables_of_istio_init() {
    let cases = [
        ("ENVOY_PORT", "25001", "-p"),
        ("INBOUND_CAPTURE_PORT", "25006", "-z"),
        ("INBOUND_TUNNEL_PORT", "25008", "-e"),
        ("PROXY_UID", "1000", "-u"),
        ("PROXY_GID", "1001", "-g"),
        ("ISTIO_INBOUND_INTERCEPTION_MODE", "TPROXY", "-m"),
        ("ISTIO_INBOUND_TPROXY_MARK", "7", "-t"),
        ("ISTIO_INBOUND_TPROXY_ROUTE_TABLE", "8", "-r"),
        ("ISTIO_INBOUND_PORTS", "80,9000:9001", "-b"),
        ("ISTIO_LOCAL_EXCLUDE_PORTS", "15020", "-d"),
        ("ISTIO_SERVICE_CIDR", "10.0.0.0/8", "-i"),
        ("ISTIO_SERVICE_EXCLUDE_CIDR", "10.1.0.0/16", "-x"),
        ("ISTIO_OUTBOUND_PORTS", "443", "-q"),
        ("ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE", "3306", "-o"),
        ("ISTIO_EXCLUDE_INTERFACES", "eth1", "-c"),
        ("KUBE_VIRT_INTERFACES", "tap0", "-k"),
        ("REDIRECT_DNS", "true", "--redirect-dns"),
        ("DUAL_STACK", "true", "--dual-stack"),
    ];
    let plain = of_pod(&with_init(&[], &[])).expect("a policy");
    for (variable, value, flag) in cases {
        let by_variable = of_pod(&with_init(&[], &[(variable, value)])).expect("a policy");
        let argument = format!("{flag}={value}");
        let by_flag = of_pod(&with_init(&[&argument], &[])).expect("a policy");
        assert_eq!(by_variable, by_flag, "{variable}");
        assert_ne!(by_variable, plain, "{variable}");
        let both = of_pod(&with_init(&[&argument], &[(variable, "7")])).expect("a policy");
        assert_eq!(both, by_flag, "{variable}");
        // It is no variable of the sidecar.
        let env = json!([{"name": variable, "value": value}]);
        let sidecar = json!({"spec": {"containers": [{"name": "istio-proxy", "env": env}]}});
        let sidecar = of_pod(&serde_json::from_value(sidecar).expect("a pod"));
        let is_mesh_wide = variable.contains("TPROXY_");
        let bare = of_pod(&crate::fixture::annotated(&[])).expect("a policy");
        assert_eq!(
            sidecar.expect("a policy") == bare,
            !is_mesh_wide,
            "{variable}"
        );
    }
    // The older name wins.
    let dns = [
        ("REDIRECT_DNS", "true"),
        ("ISTIO_META_DNS_CAPTURE", "false"),
    ];
    assert_eq!(
        of_pod(&with_init(&[], &dns)).expect("a policy").dns,
        DnsCapture::Off
    );
}
