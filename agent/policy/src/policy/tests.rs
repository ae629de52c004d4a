//! Inputs in the forms the seeds show, and bad ones.

use k8s_openapi::api::core::v1::Pod;
use sidetrack_common::policy::List;

use super::{InboundPorts, Inputs, Mode, OutboundRanges, Policy, PolicyError};
use crate::{dialect::Dialect, record};

fn of_pod(pod: &Pod) -> Result<Policy, Vec<PolicyError>> {
    Policy::of_pod(pod, &Inputs::default())
}

fn pod(yaml: &str) -> Pod {
    serde_saphyr::from_str(yaml).expect("test manifest")
}

fn annotated(annotations: &[(&str, &str)]) -> Pod {
    let mut pod = pod("spec:\n  containers: [{name: app}, {name: istio-proxy}]\n");
    pod.metadata.annotations = Some(
        annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    );
    pod
}

fn ports_excluded(policy: &Policy) -> &[u16] {
    match &policy.inbound {
        InboundPorts::AllExcept(ports) => ports,
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults() {
    let policy = of_pod(&annotated(&[])).unwrap();
    assert_eq!(ports_excluded(&policy), [15090, 15021, 15020]);
    assert_eq!(policy.outbound, OutboundRanges::All);
    assert_eq!((policy.outbound_port, policy.inbound_port), (15001, 15006));
    assert_eq!(
        (policy.proxy_uids, policy.proxy_gids),
        (vec![1337], vec![1337])
    );
}

#[test]
fn annotations() {
    let policy = of_pod(&annotated(&[
        (
            "traffic.sidecar.istio.io/excludeInboundPorts",
            "9000, 9001,,",
        ),
        ("status.sidecar.istio.io/port", "0"),
        (
            "traffic.sidecar.istio.io/includeOutboundIPRanges",
            "10.0.0.0/8,fd00::/8",
        ),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "3306"),
    ]))
    .unwrap();
    assert_eq!(ports_excluded(&policy), [15090, 15021, 9000, 9001]);
    assert_eq!(policy.excluded_outbound_ports, [3306]);
    let compiled = policy.compile();
    assert!(compiled.row().has(List::RangeIncluded));
    assert!(compiled.row().has(List::OutPortExcluded));
    assert!(!compiled.row().has(List::RangeExcluded));
}

#[test]
fn arguments_win_over_annotations() {
    // Seed 003: the annotation says "80", istio-init says "*".
    let pod = pod(r#"
metadata:
  annotations: {traffic.sidecar.istio.io/includeInboundPorts: "80"}
spec:
  containers: [{name: istio-proxy}]
  initContainers:
  - name: istio-init
    command: [istio-iptables, -p, "15001", -z, "15006", -u, "1337", -m, REDIRECT, -i, '*', -x, "", -b, '*', -d, "15090,15020"]
"#);
    let policy = of_pod(&pod).unwrap();
    assert_eq!(ports_excluded(&policy), [15090, 15020]);
    assert_eq!(policy.excluded_ranges, []);
}

#[test]
fn argument_forms() {
    for args in [
        r#"["-p","15002","-u","1338","-b","80","-i","","-m","REDIRECT"]"#,
        r#"[istio-iptables, --envoy-port=15002, --proxy-uid, "1338", -b=80, --istio-service-cidr=, --redirect-dns]"#,
        r#"[-p1,-p15002,-u=7,-u,"1338",-b80,-i=,--redirect-dns=true]"#,
    ] {
        let pod = pod(&format!(
            "spec:\n  containers: [{{name: istio-proxy}}]\n  initContainers: [{{name: istio-init, args: {args}}}]\n"
        ));
        let policy = of_pod(&pod).unwrap();
        assert_eq!(policy.outbound_port, 15002, "{args}");
        assert_eq!(policy.proxy_gids, [1338], "{args}");
        assert_eq!(policy.inbound, InboundPorts::Only(vec![80]), "{args}");
        assert_eq!(policy.outbound, OutboundRanges::Only(vec![]), "{args}");
        let asks_for_dns = args.contains("dns");
        assert_eq!(policy.dns_capture, asks_for_dns, "{args}");
        assert_eq!(policy.notes().len(), usize::from(asks_for_dns), "{args}");
    }
}

#[test]
fn every_bad_value_is_named() {
    let errors = of_pod(&annotated(&[
        ("traffic.sidecar.istio.io/includeInboundPorts", "80,http"),
        ("traffic.sidecar.istio.io/excludeOutboundIPRanges", "*"),
        (
            "traffic.sidecar.istio.io/includeOutboundIPRanges",
            "10.0.0.0/33",
        ),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "0,65536"),
        ("sidecar.istio.io/interceptionMode", "redirect"),
        ("traffic.sidecar.istio.io/excludeInterfaces", "a/b"),
    ]))
    .unwrap_err();
    assert_eq!(errors.len(), 7);
    let text = errors.iter().map(ToString::to_string).collect::<String>();
    for part in [
        "annotation traffic.sidecar.istio.io/includeInboundPorts",
        "\"http\" is not a port",
        "\"10.0.0.0/33\" is not a CIDR",
        "REDIRECT, TPROXY or NONE",
        "\"65536\" is not a port",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn modes_and_missing_values() {
    let mode = |mode| of_pod(&annotated(&[("sidecar.istio.io/interceptionMode", mode)]));
    assert_eq!(mode("NONE").unwrap().mode, Mode::None);
    assert_eq!(mode("TPROXY").unwrap().mode, Mode::Tproxy);
    let cut = pod(
        "spec:\n  containers: [{name: istio-proxy}]\n  initContainers: [{name: istio-init, args: [-p]}]\n",
    );
    let errors = of_pod(&cut).unwrap_err();
    assert!(errors[0].to_string().contains("value is missing"));
}

#[test]
fn a_range_counts_under_the_first_that_holds_it() {
    let policy = of_pod(&annotated(&[(
        "traffic.sidecar.istio.io/excludeOutboundIPRanges",
        "10.1.0.0/16,10.0.0.0/8,10.1.2.0/24,192.168.0.0/16",
    )]))
    .unwrap();
    let positions = policy.compile().range_positions();
    assert_eq!(
        positions,
        [
            ("10.0.0.0/8".parse().unwrap(), 1),
            ("10.1.0.0/16".parse().unwrap(), 0),
            ("10.1.2.0/24".parse().unwrap(), 0),
            ("192.168.0.0/16".parse().unwrap(), 3),
        ]
    );
}

#[test]
fn interface_names() {
    let policy = |names: &str| {
        let name = "traffic.sidecar.istio.io/excludeInterfaces";
        of_pod(&annotated(&[(name, names)]))
    };
    let names = "eth0,a-b.c_d@e,wla\u{f1},fifteen-bytes-1";
    assert_eq!(policy(names).unwrap().excluded_interfaces.len(), 4);
    for bad in [
        "a/b",
        "a:b",
        "a b",
        "..",
        "sixteen-bytes-12",
        "!",
        "\u{1b}[2J",
        "a\u{8}",
        "\"a",
        "a'",
        "a\\",
    ] {
        let errors = policy(bad).unwrap_err();
        assert!(errors[0].problem.contains("not an interface name"), "{bad}");
    }
    // iptables would take it for every net...
    let errors = policy("net+").unwrap_err();
    assert!(errors[0].problem.contains("name each"));
}

#[test]
fn values_as_large_as_a_manifest() {
    const LEN: usize = 4 << 20;
    let errors = |name: &str, item: &str| {
        let value = item.repeat(LEN / item.len());
        let start = std::time::Instant::now();
        let errors = of_pod(&annotated(&[(name, &value)])).unwrap_err();
        // Far more than it takes, far less than it did when each item's error had the whole value.
        assert!(start.elapsed().as_secs() < 10, "{name} of {item:?}");
        let text = errors.iter().map(ToString::to_string).collect::<String>();
        assert!(text.len() < 10_000, "{name} of {item:?}: {}", text.len());
        text
    };
    let ports = "traffic.sidecar.istio.io/excludeOutboundPorts";
    let ranges = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
    let interfaces = "traffic.sidecar.istio.io/excludeInterfaces";
    let text = errors(ports, "x,");
    assert!(text.contains("9990 more entries cannot be used"), "{text}");
    for (name, item) in [(ports, "80,"), (ranges, "10.0.0.1,"), (interfaces, "a,")] {
        let text = errors(name, item);
        assert!(text.contains("at most 10000 entries"), "{text}");
    }
    for name in [ports, ranges, interfaces, "sidetrack.dev/dialect"] {
        errors(name, "x");
    }
}

#[test]
fn a_removed_init_container_counts_like_a_present_one() {
    let words = ["-p", "15002", "-u", "1338", "-b", "80"];
    let present = pod(&format!(
        "spec:\n  containers: [{{name: istio-proxy}}]\n  initContainers: [{{name: istio-init, image: 'a:1.1.3', args: {words:?}, env: [{{name: ISTIO_DUAL_STACK, value: 'true'}}, {{name: ISTIO_DUAL_STACK, value: 'no'}}]}}]\n"
    ));
    let policy = of_pod(&present).unwrap();
    assert_eq!(policy.outbound_port, 15002);
    assert_eq!(policy.dialect, Dialect::V1_1);
    assert!(policy.dual_stack);
    let record = format!(
        "{{\"words\":{words:?},\"env\":{{\"ISTIO_DUAL_STACK\":\"true\"}},\"image\":\"a:1.1.3\"}}"
    );
    let annotations = [
        (record::ANNOTATION, &*record),
        // Weaker than arguments.
        ("traffic.sidecar.istio.io/includeInboundPorts", "81"),
    ];
    assert_eq!(of_pod(&annotated(&annotations)).unwrap(), policy);
    // One that is there wins.
    let mut both = present;
    both.metadata.annotations = annotated(&[(record::ANNOTATION, "{\"words\":[\"-p\",\"7\"]}")])
        .metadata
        .annotations;
    assert_eq!(of_pod(&both).unwrap(), policy);
}

#[test]
fn a_bad_record_is_named() {
    let long = format!("{{\"words\":[{:?}]}}", "x".repeat(256 << 10));
    for bad in [
        "",
        "{",
        "7",
        "{\"words\":7}",
        "{\"words\":[],\"args\":[]}",
        "{\"words\":[\"\u{1b}[2J\"],\"x\":1}",
        "{\"words\":[\"-p\"]}",
        "{\"words\":[\"-p\",\"http\"]}",
        &long,
    ] {
        let errors = of_pod(&annotated(&[(record::ANNOTATION, bad)])).unwrap_err();
        let text = errors[0].to_string();
        assert!(
            text.contains("annotation sidetrack.dev/istio-init"),
            "{text}"
        );
        assert!(
            !text.contains(char::is_control) && text.len() < 600,
            "{text}"
        );
    }
}

/// The sidecar's environment repeats mesh-wide settings; istio-init's variables win over it.
#[test]
fn variables_of_the_sidecar() {
    let with = |sidecar: &str, init: &str| {
        let text = format!(
            "spec:\n  containers: [{{name: app, env: [{{name: ISTIO_DUAL_STACK, value: 'x'}}]}}, {{name: istio-proxy, env: [{sidecar}]}}]\n  initContainers: [{{name: istio-init, env: [{init}]}}]\n"
        );
        of_pod(&pod(&text))
    };
    let variable = |name: &str, value: &str| format!("{{name: {name}, value: '{value}'}}");
    let groups = |value: &str| with(&variable("ISTIO_OUTBOUND_OWNER_GROUPS", value), "").unwrap();
    assert_eq!(groups("5, 6").included_groups, Some(vec![5, 6]));
    assert_eq!(groups("*").included_groups, None);
    assert_eq!(groups("").included_groups, Some(vec![]));
    assert_eq!(with("", "").unwrap().included_groups, None);
    let excluded = variable("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "7");
    assert_eq!(with(&excluded, "").unwrap().excluded_groups, [7]);
    let loopback = variable("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/8");
    assert_eq!(with(&loopback, "").unwrap().loopback_v4.prefix_len(), 8);
    let dns = variable("ISTIO_META_DNS_CAPTURE", "true");
    assert!(with(&dns, "").unwrap().dns_capture);
    let [yes, no] = ["true", "false"].map(|value| variable("ISTIO_DUAL_STACK", value));
    assert!(with(&yes, "").unwrap().dual_stack);
    assert!(!with(&yes, &no).unwrap().dual_stack);
    let errors = with(&variable("ISTIO_DUAL_STACK", "maybe"), "").unwrap_err();
    let text = errors[0].to_string();
    assert_eq!(
        text,
        "variable ISTIO_DUAL_STACK of istio-proxy is \"maybe\": write true or false"
    );
}

/// Errors of the command line and of annotations are reported together.
#[test]
fn errors_of_all_sources() {
    let mut pod = pod(
        "spec:\n  containers: [{name: istio-proxy}]\n  initContainers: [{name: istio-init, args: [-p]}]\n",
    );
    assert_eq!(of_pod(&pod).unwrap_err().len(), 1);
    pod.metadata.annotations = annotated(&[("sidetrack.dev/before-sidecar", "x")])
        .metadata
        .annotations;
    let errors = of_pod(&pod).unwrap_err();
    let origins: Vec<&str> = errors.iter().map(|error| &*error.origin).collect();
    assert_eq!(
        origins,
        [
            "the command line of istio-init",
            "annotation sidetrack.dev/before-sidecar"
        ]
    );
}

#[test]
fn inbound_ports_and_their_exemptions() {
    let with = |annotations: &[(&str, &str)]| of_pod(&annotated(annotations)).unwrap().inbound;
    let include = "traffic.sidecar.istio.io/includeInboundPorts";
    let exclude = "traffic.sidecar.istio.io/excludeInboundPorts";
    assert_eq!(with(&[(include, "")]), InboundPorts::None);
    assert_eq!(
        with(&[(include, "80,443")]),
        InboundPorts::Only(vec![80, 443])
    );
    let all = InboundPorts::AllExcept(vec![15090, 15021, 9000, 15020]);
    assert_eq!(with(&[(include, "*"), (exclude, "9000")]), all);
    // Exemptions are for "*" only.
    assert_eq!(
        with(&[(include, "80"), (exclude, "9000")]),
        InboundPorts::Only(vec![80])
    );
    let status = "status.sidecar.istio.io/port";
    assert_eq!(
        with(&[(status, "7")]),
        InboundPorts::AllExcept(vec![15090, 15021, 7])
    );
}

/// The inbound port of versions that had one port for both directions.
#[test]
fn inbound_port_by_dialect() {
    let port = |dialect: &str, ports: &str| {
        let policy = of_pod(&annotated(&[
            ("sidetrack.dev/dialect", dialect),
            ("traffic.sidecar.istio.io/includeInboundPorts", ports),
        ]));
        policy.unwrap().inbound_port
    };
    assert_eq!((port("1.1", "*"), port("1.1", "80")), (15001, 15001));
    assert_eq!((port("1.5", "*"), port("1.5", "80")), (15006, 15001));
    assert_eq!((port("1.8", "*"), port("1.8", "80")), (15006, 15006));
}
