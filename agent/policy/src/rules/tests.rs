//! The rule lists that the articles print, from the pods they print them for.

use sidetrack_common::{
    addr::Family,
    decide::{Decision, Verdict, virtual_index},
    rule::Rule,
};

use super::{all, chains, line_of, restore};
use crate::{
    dialect::Dialect,
    error::PolicyError,
    facts::PodFacts,
    fixture::annotated,
    inputs::Inputs,
    policy::{DnsCapture, InboundPorts, OutboundRanges, Policy},
};

fn of_pod(pod: &PodFacts) -> Result<Policy, Vec<PolicyError>> {
    Policy::of_pod(pod, &Inputs::default())
}

fn pod(image: &str, init: &str) -> PodFacts {
    serde_saphyr::from_str(&format!(
        "spec:
  containers: [{{name: app}}, {{name: istio-proxy, image: {image}}}]
  initContainers: [{{name: istio-init, {init}}}]
"
    ))
    .expect("a manifest")
}

/// What the rules print, without `-P` and `-N`.
fn lines(pod: &PodFacts) -> Vec<String> {
    let policy = of_pod(pod).expect("a policy");
    all(&policy, Family::V4)
        .iter()
        .map(super::Line::command)
        .collect()
}

#[test]
fn istio_1_1_3() {
    // A pod without container ports, so that the injector wrote an empty -b.
    let pod = pod(
        "docker.io/istio/proxyv2:1.1.3",
        r#"image: "docker.io/istio/proxy_init:1.1.3", args: ["-p","15001","-u","1337","-m","REDIRECT","-i","*","-x","","-b","","-d","15020"]"#,
    );
    let printed = "\
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ISTIO_REDIRECT
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001";
    assert_eq!(lines(&pod), printed.lines().collect::<Vec<_>>());
    let policy = of_pod(&pod).expect("a policy");
    assert_eq!(
        chains(&policy),
        ["ISTIO_IN_REDIRECT", "ISTIO_OUTPUT", "ISTIO_REDIRECT"]
    );
}

#[test]
fn istio_1_8_1_and_1_12_7() {
    let printed = "\
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A ISTIO_INBOUND -p tcp -m tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 22 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15090 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15021 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15020 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -s 127.0.0.6/32 -o lo -j RETURN
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001";
    let args = r#"args: [istio-iptables, -p, "15001", -z, "15006", -u, "1337", -m, REDIRECT, -i, '*', -x, "", -b, '*', -d, "15090,15021,15020"]"#;
    for version in ["1.8.1", "1.12.7"] {
        let pod = pod(&format!("docker.io/istio/proxyv2:{version}"), args);
        assert_eq!(
            lines(&pod),
            printed.lines().collect::<Vec<_>>(),
            "{version}"
        );
    }
}

#[test]
fn istio_1_5_0_follows_its_arguments() {
    let mut pod = pod(
        "docker.io/istio/proxyv2:1.5.0",
        r#"command: [istio-iptables, -p, "15001", -z, "15006", -u, "1337", -m, REDIRECT, -i, '*', -x, "", -b, '*', -d, "15090,15020"]"#,
    );
    let annotations = [("traffic.sidecar.istio.io/includeInboundPorts", "80")];
    pod.meta = annotated(&annotations).meta;
    let policy = of_pod(&pod).expect("a policy");
    assert_eq!(
        policy.inbound,
        InboundPorts::AllExcept(crate::spans(vec![15090, 15020]))
    );
    let lines = lines(&pod);
    assert!(lines.contains(&"-A ISTIO_INBOUND -p tcp -m tcp --dport 22 -j RETURN".to_owned()));
    assert!(
        !lines.iter().any(|line| line.contains("15008")),
        "{lines:?}"
    );
}

#[test]
fn restore_input_of_both_families() {
    let policy = Policy {
        excluded_ranges: vec!["192.0.2.7/24".parse().unwrap(), "fd00::/8".parse().unwrap()],
        ..Policy::default()
    };
    let v4 = restore(&policy, Family::V4);
    assert!(v4.starts_with("*nat\n:PREROUTING ACCEPT [0:0]\n"));
    assert!(v4.ends_with("COMMIT\n"));
    assert!(v4.contains("-d 192.0.2.0/24 -j RETURN") && !v4.contains("fd00"));
    assert!(v4.contains("! -d 127.0.0.1/32 -o lo -p tcp -m tcp ! --dport 15008 -m owner"));
    let v6 = restore(&policy, Family::V6);
    assert!(v6.contains("-d fd00::/8 -j RETURN") && !v6.contains("192.0.2"));
    assert!(v6.contains("-s ::6/128 -o lo -j RETURN"));
}

/// The line of a decision is found by its rule and its position together.
#[test]
fn lines_of_decisions() {
    let policy = Policy {
        excluded_outbound_ports: crate::spans(vec![1, 2]),
        virtual_interfaces: vec!["tap0".to_owned(), "tap1".to_owned()],
        outbound: OutboundRanges::Only(vec![
            "10.0.0.0/8".parse().unwrap(),
            "fd00::/8".parse().unwrap(),
            "10.9.0.0/16".parse().unwrap(),
        ]),
        ..Policy::default()
    };
    let command = |family, rule, index| {
        let decision = Decision {
            rule,
            index,
            verdict: Verdict::Untouched,
        };
        line_of(&policy, family, &decision).map(|line| line.command())
    };
    let second = command(Family::V4, Rule::OutPortExcluded, 1);
    let text = "-A ISTIO_OUTPUT -p tcp -m tcp --dport 2 -j RETURN";
    assert_eq!(second.as_deref(), Some(text));
    assert_eq!(command(Family::V4, Rule::OutPortExcluded, 2), None);
    assert_eq!(command(Family::V4, Rule::OutPortIncluded, 0), None);
    for (interface, range, family, expected) in [
        (
            0,
            0,
            Family::V4,
            Some("-A PREROUTING -d 10.0.0.0/8 -i tap0 -j ISTIO_REDIRECT"),
        ),
        (
            1,
            2,
            Family::V4,
            Some("-A PREROUTING -d 10.9.0.0/16 -i tap1 -j ISTIO_REDIRECT"),
        ),
        (
            1,
            1,
            Family::V6,
            Some("-A PREROUTING -d fd00::/8 -i tap1 -j ISTIO_REDIRECT"),
        ),
        (1, 1, Family::V4, None),
    ] {
        let index = virtual_index(interface, range);
        let found = command(family, Rule::VirtualInterface, index);
        assert_eq!(found.as_deref(), expected, "{interface} {range}");
    }
}

/// What each dialect exempts from capture, line by line.
#[test]
fn dialects_differ_in_these_lines() {
    let own = "-A ISTIO_OUTPUT -s 127.0.0.6/32 -o lo -j RETURN";
    let local = "-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ISTIO_REDIRECT";
    let ssh = "-A ISTIO_INBOUND -p tcp -m tcp --dport 22 -j RETURN";
    let tunnel_in = "-A ISTIO_INBOUND -p tcp -m tcp --dport 15008 -j RETURN";
    let tunnel_out = "-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m tcp ! --dport 15008 \
                      -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT";
    let owner = "-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -m owner --uid-owner 1337 \
                 -j ISTIO_IN_REDIRECT";
    let not_owner = "-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN";
    for (dialect, has) in [
        (Dialect::V1_1, [local, ssh].as_slice()),
        (Dialect::V1_5, &[own, ssh, owner, not_owner]),
        (Dialect::V1_8, &[own, ssh, tunnel_in, owner, not_owner]),
        (Dialect::V1_13, &[own, tunnel_in, owner, not_owner]),
        (Dialect::Current, &[own, tunnel_in, tunnel_out, not_owner]),
    ] {
        let policy = Policy {
            dialect,
            ..Policy::default()
        };
        let text = restore(&policy, Family::V4);
        for line in [own, local, ssh, tunnel_in, tunnel_out, owner, not_owner] {
            let found = text.lines().any(|known| known == line);
            assert_eq!(found, has.contains(&line), "{dialect}: {line}");
        }
    }
}

#[test]
fn listed_inbound_ports_need_no_exemption_for_ssh() {
    let policy = Policy {
        dialect: Dialect::V1_8,
        inbound: InboundPorts::Only(crate::spans(vec![80, 443])),
        ..Policy::default()
    };
    let inbound: Vec<String> = all(&policy, Family::V4)
        .iter()
        .filter(|line| line.chain == "ISTIO_INBOUND")
        .map(|line| line.text.clone())
        .collect();
    assert_eq!(
        inbound,
        [
            "-p tcp -m tcp --dport 15008 -j RETURN",
            "-p tcp -m tcp --dport 80 -j ISTIO_IN_REDIRECT",
            "-p tcp -m tcp --dport 443 -j ISTIO_IN_REDIRECT",
        ]
    );
}

#[test]
fn groups_and_interfaces() {
    let policy = Policy {
        excluded_interfaces: vec!["eth1".to_owned()],
        virtual_interfaces: vec!["tap0".to_owned()],
        included_groups: Some(vec![5, 6]),
        excluded_groups: vec![9],
        outbound: OutboundRanges::Only(vec!["127.0.0.0/8".parse().unwrap()]),
        ..Policy::default()
    };
    let text = restore(&policy, Family::V4);
    for line in [
        "-A PREROUTING -d 127.0.0.0/8 -i tap0 -j ISTIO_REDIRECT",
        "-A PREROUTING -i tap0 -j RETURN",
        "-A PREROUTING -i eth1 -j RETURN",
        "-A OUTPUT -o eth1 -j RETURN",
        "-A ISTIO_OUTPUT -m owner --gid-owner 9 -j RETURN",
        "-A ISTIO_OUTPUT -m owner ! --gid-owner 5 -m owner ! --gid-owner 6 -j RETURN",
        "-A ISTIO_OUTPUT -d 127.0.0.0/8 -j ISTIO_REDIRECT",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    }
    // A loopback range that is captured ends the exemption of other users.
    assert!(!text.contains("-o lo -m owner ! --uid-owner"), "{text}");
    let no_group = Policy {
        included_groups: Some(vec![]),
        ..Policy::default()
    };
    let all_groups = Policy::default();
    assert_eq!(
        restore(&no_group, Family::V4),
        restore(&all_groups, Family::V4)
    );
}

#[test]
fn patterns_of_interfaces() {
    // iptables -S prints no interface for the pattern that matches all.
    let patterns = Policy {
        excluded_interfaces: vec!["net+".to_owned(), "+".to_owned()],
        virtual_interfaces: vec!["tap+".to_owned(), "+".to_owned()],
        ..Policy::default()
    };
    let text = restore(&patterns, Family::V4);
    let named =
        |line: &&str| ["PREROUTING", "OUTPUT"].contains(&line.split(' ').nth(1).unwrap_or(""));
    let lines: Vec<&str> = text
        .lines()
        .filter(named)
        .filter(|line| !line.contains("ISTIO_INBOUND"))
        .collect();
    assert_eq!(
        lines,
        [
            "-A PREROUTING -i tap+ -j ISTIO_REDIRECT",
            "-A PREROUTING -i tap+ -j RETURN",
            "-A PREROUTING -j ISTIO_REDIRECT",
            "-A PREROUTING -j RETURN",
            "-A PREROUTING -i net+ -j RETURN",
            "-A PREROUTING -j RETURN",
            "-A OUTPUT -o net+ -j RETURN",
            "-A OUTPUT -j RETURN",
            "-A OUTPUT -p tcp -j ISTIO_OUTPUT",
        ]
    );
}

/// As istio-iptables of Istio 1.28 programs it, in testdata/dns-uid-gid.golden for two servers.
#[test]
fn dns_capture_of_istio_1_28() {
    let policy = Policy {
        proxy_uids: vec![1, 2],
        proxy_gids: vec![3],
        dns: DnsCapture::Servers(Some(vec![[10, 96, 0, 10].into()])),
        ..Policy::default()
    };
    let text = restore(&policy, Family::V4);
    let raw = "\
*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:ISTIO_INBOUND - [0:0]
:ISTIO_OUTPUT_DNS - [0:0]
-A PREROUTING -j ISTIO_INBOUND
-A OUTPUT -j ISTIO_OUTPUT_DNS
-A ISTIO_INBOUND -s 10.96.0.10/32 -p udp -m udp --sport 53 -j CT --zone 1
-A ISTIO_OUTPUT_DNS -p udp -m udp --dport 53 -m owner --uid-owner 1 -j CT --zone 1
-A ISTIO_OUTPUT_DNS -p udp -m udp --sport 15053 -m owner --uid-owner 1 -j CT --zone 2
-A ISTIO_OUTPUT_DNS -p udp -m udp --dport 53 -m owner --uid-owner 2 -j CT --zone 1
-A ISTIO_OUTPUT_DNS -p udp -m udp --sport 15053 -m owner --uid-owner 2 -j CT --zone 2
-A ISTIO_OUTPUT_DNS -p udp -m udp --dport 53 -m owner --gid-owner 3 -j CT --zone 1
-A ISTIO_OUTPUT_DNS -p udp -m udp --sport 15053 -m owner --gid-owner 3 -j CT --zone 2
-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p udp -m udp --dport 53 -j CT --zone 2
COMMIT
*nat
";
    assert!(text.starts_with(raw), "{text}");
    for line in [
        "-A OUTPUT -j ISTIO_OUTPUT",
        "-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m multiport ! --dports 53,15008 -m owner --uid-owner 1 -j ISTIO_IN_REDIRECT",
        "-A ISTIO_OUTPUT -o lo -p tcp -m tcp ! --dport 53 -m owner ! --uid-owner 1 -j RETURN",
        "-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m tcp ! --dport 15008 -m owner --gid-owner 3 -j ISTIO_IN_REDIRECT",
        "-A ISTIO_OUTPUT -j ISTIO_OUTPUT_DNS",
        "-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -j REDIRECT --to-ports 15053",
        "-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053",
    ] {
        assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
    }
    // IPv6 has the chain and no server.
    let text = restore(&policy, Family::V6);
    assert!(
        !text.contains("-j ISTIO_OUTPUT_DNS\n-A ISTIO_OUTPUT -d"),
        "{text}"
    );
    assert!(!text.contains("--to-ports 15053"), "{text}");
}

#[test]
fn dns_capture_of_istio_1_8_1() {
    let policy = Policy {
        dialect: Dialect::V1_8,
        dns: DnsCapture::Servers(None),
        ..Policy::default()
    };
    let text = restore(&policy, Family::V4);
    for line in [
        "-A OUTPUT -p udp -m udp --dport 53 -m owner --gid-owner 1337 -j RETURN",
        "-A OUTPUT -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.1:15053",
        "-A POSTROUTING -p udp -m udp --dport 15053 -j SNAT --to-source 127.0.0.1",
        "-A ISTIO_REDIRECT -p tcp -m tcp --dport 53 -j REDIRECT --to-ports 15053",
    ] {
        assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
    }
    assert!(!restore(&policy, Family::V6).contains("53"));
}
