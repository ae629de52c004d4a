//! Values of annotations, good and bad.

use sidetrack_common::policy::List;

use crate::{
    error::PolicyError,
    fixture::{annotated, of_pod, pod},
    policy::{InboundPorts, Mode, Policy},
};

/// Of a pod whose istio-init has these arguments and variables, as flows of YAML, and this annotation.
fn with_init(args: &str, env: &str, annotation: &str) -> Result<Policy, Vec<PolicyError>> {
    of_pod(&pod(&format!(
        "metadata: {{annotations: {{{annotation}}}}}
spec:
  containers: [{{name: istio-proxy}}]
  initContainers: [{{name: istio-init, args: [istio-iptables, {args}], env: [{env}]}}]
"
    )))
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
    let patterns = policy("net+, +").unwrap().excluded_interfaces;
    assert_eq!(patterns, ["net+", "+"]);
}

#[test]
fn values_as_large_as_a_pod_may_have() {
    const LEN: usize = crate::facts::MAX_POD_BYTES;
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
fn inbound_ports_and_their_exemptions() {
    let with = |annotations: &[(&str, &str)]| of_pod(&annotated(annotations)).unwrap().inbound;
    let include = "traffic.sidecar.istio.io/includeInboundPorts";
    let exclude = "traffic.sidecar.istio.io/excludeInboundPorts";
    assert_eq!(with(&[(include, "")]), InboundPorts::None);
    assert_eq!(
        with(&[(include, "80,443")]),
        InboundPorts::Only(crate::spans(vec![80, 443]))
    );
    let all = InboundPorts::AllExcept(crate::spans(vec![15090, 15021, 9000, 15020]));
    assert_eq!(with(&[(include, "*"), (exclude, "9000")]), all);
    // Exemptions are for "*" only.
    assert_eq!(
        with(&[(include, "80"), (exclude, "9000")]),
        InboundPorts::Only(crate::spans(vec![80]))
    );
    let status = "status.sidecar.istio.io/port";
    assert_eq!(
        with(&[(status, "7")]),
        InboundPorts::AllExcept(crate::spans(vec![15090, 15021, 7]))
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

/// As `ParseInterceptFilter` of istio-iptables reads them.
#[test]
fn groups_are_included_or_excluded() {
    let groups = |include: &str, exclude: &str| {
        let env = format!(
            "{{name: ISTIO_OUTBOUND_OWNER_GROUPS, value: '{include}'}}, {{name: ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE, value: '{exclude}'}}"
        );
        let policy = with_init("-m, REDIRECT", &env, "").expect("a policy");
        (policy.included_groups, policy.excluded_groups)
    };
    assert_eq!(groups("*", "root,202"), (None, vec![0, 202]));
    assert_eq!(
        groups("1000,2000", "1000"),
        (Some(vec![1000, 2000]), vec![])
    );
}

#[test]
fn no_owner_is_the_default_one() {
    let policy = with_init("-u, '', -g, ''", "", "").expect("a policy");
    assert_eq!(
        (policy.proxy_uids, policy.proxy_gids),
        (vec![1337], vec![1337])
    );
}

#[test]
fn numbers_that_others_read_otherwise_are_none() {
    let name = "traffic.sidecar.istio.io/excludeOutboundPorts";
    for ports in ["0443", "+443", "00"] {
        assert!(of_pod(&annotated(&[(name, ports)])).is_err(), "{ports}");
    }
    let ranges = with_init("-x, '010.0.0.0/8,10.0.0.0/08,10.1.0.0/16'", "", "");
    let ranges = ranges.expect("a policy").excluded_ranges;
    assert_eq!(ranges, ["10.1.0.0/16".parse().expect("a range")]);
}

#[test]
fn annotations_that_arguments_replace_are_not_read() {
    let annotation = "traffic.sidecar.istio.io/excludeInboundPorts: '0'";
    let policy = with_init("-b, '*', -d, '15090,0'", "", annotation);
    let InboundPorts::AllExcept(ports) = policy.expect("a policy").inbound else {
        panic!("all but some");
    };
    assert_eq!(ports.len(), 2);
    assert!(with_init("-b, '*'", "", annotation).is_err());
}

#[test]
fn mode_tproxy_has_a_row_for_each_excluded_port() {
    let compiled = |args: &str| with_init(args, "", "").map(|policy| policy.compile());
    let policy = compiled("-m, TPROXY, -d, '8000:8099', -o, '9000:9009'").expect("a policy");
    assert_eq!(policy.list_sizes().ports, 110);
    assert!(policy.row().lists & List::OutPortRangeExcluded.bit() == 0);
    let policy = compiled("-m, REDIRECT, -d, '8000:8099', -o, '9000:9009'").expect("a policy");
    assert_eq!(policy.list_sizes().ports, 0);
    assert!(compiled("-m, TPROXY, -d, '1:65535'").is_err());
}
