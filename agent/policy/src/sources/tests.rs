//! Who the proxy of an Istio pod is, and what is excluded, by the mode of the pod.

use serde_json::{Value, json};

use crate::{
    facts::PodFacts,
    fixture::of_pod,
    inputs::{Input, Inputs},
    policy::{DnsCapture, Policy},
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
    let expected = crate::InboundPorts::AllExcept(vec![15090, 15021, 8080, 15020]);
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
