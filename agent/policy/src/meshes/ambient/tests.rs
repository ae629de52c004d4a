use serde_json::{Value, json};
use sidetrack_common::addr::Family;

use crate::{
    Policy, PolicyError, ReturnRoute,
    facts::PodFacts,
    policy::{DnsCapture, InboundPorts},
    rules::restore,
};

/// ztunnel's scripts/ztunnel-redirect-inpod.sh, with the words `iptables-save` adds to it.
const IPV4: &str = "\
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:ISTIO_OUTPUT - [0:0]
:ISTIO_PRERT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:ISTIO_OUTPUT - [0:0]
:ISTIO_PRERT - [0:0]
-A OUTPUT -j ISTIO_OUTPUT
-A PREROUTING -j ISTIO_PRERT
-A ISTIO_OUTPUT -d 169.254.7.127/32 -p tcp -m tcp -j ACCEPT
-A ISTIO_OUTPUT ! -o lo -p udp -m mark ! --mark 0x539/0xfff -m udp --dport 53 -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp -m tcp --dport 53 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
-A ISTIO_PRERT -s 169.254.7.127/32 -p tcp -m tcp -j ACCEPT
-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp -m tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
COMMIT
";

fn policy(annotations: Value) -> Result<Policy, Vec<PolicyError>> {
    let pod = json!({"metadata": {"annotations": annotations}});
    let pod: PodFacts = serde_json::from_value(pod).expect("a Pod");
    Policy::of_ambient_pod(&pod)
}

fn lines(policy: &Policy, chain: &str) -> Vec<String> {
    let text = restore(policy, Family::V4);
    let nat = text.split_once("*nat").map_or("", |(_, nat)| nat);
    let start = format!("-A {chain} ");
    let lines = nat.lines().filter_map(|line| line.strip_prefix(&start));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_pod_without_annotations_has_the_rules_of_istio_cni() {
    let policy = policy(json!({})).expect("a policy");
    assert_eq!(restore(&policy, Family::V4), IPV4);
    let v6 = IPV4.replace("127.0.0.1/32", "::1/128").replace(
        "169.254.7.127/32",
        "fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128",
    );
    assert_eq!(restore(&policy, Family::V6), v6);
}

#[test]
fn annotations_change_the_rules() {
    let empty = policy(json!({"ambient.istio.io/dns-capture": ""})).expect("a policy");
    assert_eq!(empty.dns, DnsCapture::All);
    let without_dns = policy(json!({"ambient.istio.io/dns-capture": "false"})).expect("a policy");
    assert_eq!(without_dns.dns, DnsCapture::Off);
    let output = lines(&without_dns, "ISTIO_OUTPUT");
    assert!(
        !output.iter().any(|line| line.contains("15053")),
        "{output:?}"
    );

    let ingress = policy(json!({"ambient.istio.io/bypass-inbound-capture": "true"}));
    let ingress = ingress.expect("a policy");
    assert_eq!(ingress.inbound, InboundPorts::None);
    assert_eq!(lines(&ingress, "ISTIO_PRERT"), [""; 0]);

    let machines = policy(json!({"istio.io/reroute-virtual-interfaces": "tap0, tap1"}));
    let machines = machines.expect("a policy");
    assert_eq!(machines.virtual_interfaces, ["tap0", "tap1"]);
    assert_eq!(
        lines(&machines, "ISTIO_PRERT")[..4],
        [
            "-i tap0 -p tcp -j REDIRECT --to-ports 15001",
            "-i tap0 -j RETURN",
            "-i tap1 -p tcp -j REDIRECT --to-ports 15001",
            "-i tap1 -j RETURN",
        ]
    );
}

#[test]
fn answers_to_calls_of_the_app_are_led_back_whatever_is_captured() {
    let route = ReturnRoute {
        mark: 0x111,
        table: 100,
    };
    for annotations in [
        json!({}),
        json!({"ambient.istio.io/bypass-inbound-capture": "true"}),
    ] {
        let policy = policy(annotations).expect("a policy");
        assert_eq!(policy.return_route(), Some(route));
        assert_eq!(policy.compile().row().transparent_mark, 0x111);
    }
}

#[test]
fn values_that_cannot_be_used_are_named() {
    for (name, value) in [
        ("ambient.istio.io/dns-capture", "on"),
        ("ambient.istio.io/bypass-inbound-capture", "on"),
        ("istio.io/reroute-virtual-interfaces", "a/b"),
        ("sidetrack.dev/before-sidecar", "passthrough"),
        ("sidetrack.dev/accelerate", "true"),
    ] {
        let errors = policy(json!({ name: value })).expect_err(name);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].origin.contains(name), "{errors:?}");
    }
}
