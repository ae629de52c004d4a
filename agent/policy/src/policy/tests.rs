//! Policies from each source of inputs, and which source wins.

use ipnet::IpNet;
use sidetrack_common::policy::List;

use super::{DnsCapture, InboundPorts, OutboundRanges, Policy};
use crate::{
    dialect::Dialect,
    exclusions::{OwnerExclusion, Span},
    fixture::{annotated, of_pod, pod},
    record,
};

fn ports_excluded(policy: &Policy) -> &[Span] {
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
        assert_eq!(
            policy.inbound,
            InboundPorts::Only(crate::spans(vec![80])),
            "{args}"
        );
        assert_eq!(policy.outbound, OutboundRanges::Only(vec![]), "{args}");
        let asks_for_dns = args.contains("dns");
        let expected = if asks_for_dns {
            DnsCapture::Servers(None)
        } else {
            DnsCapture::Off
        };
        assert_eq!(policy.dns, expected, "{args}");
        assert_eq!(policy.notes().len(), usize::from(asks_for_dns), "{args}");
    }
}

#[test]
fn a_removed_init_container_counts_like_a_present_one() {
    let words = ["-p", "15002", "-u", "1338", "-b", "80"];
    let present = pod(&format!(
        "spec:\n  containers: [{{name: istio-proxy}}]\n  initContainers: [{{name: istio-init, image: 'a:1.1.3', args: {words:?}, env: [{{name: ISTIO_DUAL_STACK, value: 'no'}}, {{name: ISTIO_DUAL_STACK, value: 'true'}}]}}]\n"
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
    both.meta.annotations = annotated(&[(record::ANNOTATION, "{\"words\":[\"-p\",\"7\"]}")])
        .meta
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
    assert_eq!(with(&dns, "").unwrap().dns, DnsCapture::Servers(None));
    // As istio-cni has it, which does not know the servers.
    let text = format!("spec: {{containers: [{{name: istio-proxy, env: [{dns}]}}]}}");
    assert_eq!(of_pod(&pod(&text)).unwrap().dns, DnsCapture::All);
    let all = |args: &str| {
        let text = format!(
            "spec: {{containers: [{{name: istio-proxy}}], initContainers: [{{name: istio-init, args: [{args}]}}]}}"
        );
        of_pod(&pod(&text)).unwrap().dns
    };
    assert_eq!(all("--redirect-dns, --capture-all-dns"), DnsCapture::All);
    assert_eq!(all("--capture-all-dns"), DnsCapture::Off);
    assert_eq!(
        all("--redirect-dns=false, --capture-all-dns"),
        DnsCapture::Off
    );
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
    pod.meta.annotations = annotated(&[("sidetrack.dev/before-sidecar", "x")])
        .meta
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
fn annotations_without_an_effect_change_no_rule() {
    let policy = Policy::default();
    let misspelt = Policy {
        unknown_annotations: vec!["traffic.sidecar.istio.io/excludeOutboundPort".to_owned()],
        ..Policy::default()
    };
    assert!(policy.has_rules_of(&misspelt) && misspelt.has_rules_of(&policy));
    let other = Policy {
        excluded_outbound_ports: crate::spans(vec![3306]),
        ..misspelt.clone()
    };
    assert!(!other.has_rules_of(&misspelt) && !misspelt.has_rules_of(&other));
}

/// An exclusion of all that a user connects to.
fn of_user(user: u32) -> OwnerExclusion {
    OwnerExclusion {
        users: Span::one(user),
        protocol: None,
        ports: Vec::new(),
    }
}

#[test]
fn exclusions_are_written_if_there_are_any() {
    let mut policy = Policy::default();
    let written = |policy: &Policy| serde_json::to_value(policy).expect("JSON");
    assert_eq!(written(&policy).get("exclusions"), None);
    policy.exclusions.owners.push(of_user(1000));
    assert_eq!(written(&policy)["exclusions"]["owners"][0]["users"], "1000");
}

#[test]
fn every_list_counts() {
    let own = Policy::default().entries();
    let range: IpNet = "10.0.0.0/8".parse().expect("a range");
    let longer: [fn(&mut Policy, IpNet); 13] = [
        |it, _| it.inbound = InboundPorts::Only(crate::spans(vec![80])),
        |it, range| it.outbound = OutboundRanges::Only(vec![range]),
        |it, range| it.excluded_ranges.push(range),
        |it, _| it.included_outbound_ports.push(80.into()),
        |it, _| it.excluded_outbound_ports.push(80.into()),
        |it, _| it.excluded_groups.push(7),
        |it, _| it.included_groups = Some(vec![7]),
        |it, _| it.excluded_interfaces.push("net1".to_owned()),
        |it, range| it.exclusions.sources.push(range),
        |it, range| it.exclusions.destinations.push(range),
        |it, _| it.exclusions.inbound_ports.push(Span::one(80)),
        |it, _| it.exclusions.outbound_ports.push(Span::one(80)),
        |it, _| it.exclusions.owners.push(of_user(1000)),
    ];
    for (position, lengthen) in longer.into_iter().enumerate() {
        let mut policy = Policy::default();
        lengthen(&mut policy, range);
        assert_eq!(policy.entries(), own + 1, "{position}");
    }
}
