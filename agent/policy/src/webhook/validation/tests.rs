//! The container that replaces istio-init.

use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use super::{LARGEST_ID, container};
use crate::policy::{OutboundRanges, Policy};

fn made(policy: &Policy) -> Result<Value, String> {
    container(policy, &Container::default(), "sidetrack:1")
}

#[test]
fn ports_are_passed_only_if_they_are_unusual() {
    for (outbound_port, inbound_port, more) in [
        (15001, 15006, &[][..]),
        (15003, 15006, &["--outbound-port=15003"]),
        (15001, 15007, &["--inbound-port=15007"]),
        (
            15003,
            15007,
            &["--outbound-port=15003", "--inbound-port=15007"],
        ),
    ] {
        let policy = Policy {
            outbound_port,
            inbound_port,
            ..Policy::default()
        };
        let args = [&["validate", "--timeout=120"], more].concat();
        assert_eq!(made(&policy).expect("a container")["args"], json!(args));
    }
}

#[test]
fn the_largest_id() {
    let with = |proxy_uids: Vec<u32>, proxy_gids: Vec<u32>| {
        let policy = Policy {
            proxy_uids,
            proxy_gids,
            ..Policy::default()
        };
        made(&policy)
    };
    let largest = with(vec![LARGEST_ID, 5], vec![0]).expect("a container");
    let security = &largest["securityContext"];
    assert_eq!(security["runAsUser"], LARGEST_ID);
    assert_eq!(security["runAsGroup"], 0);
    assert_eq!(security["runAsNonRoot"], true);
    let root = with(vec![0], vec![7]).expect("a container");
    assert_eq!(root["securityContext"]["runAsNonRoot"], false);
    for (uids, gids) in [
        (vec![LARGEST_ID + 1], vec![5]),
        (vec![5], vec![LARGEST_ID + 1]),
    ] {
        let error = with(uids, gids).unwrap_err();
        assert!(error.contains("the largest is 2147483647"), "{error}");
    }
}

#[test]
fn resources_are_those_of_istio_init() {
    let built_in = json!({
        "limits": {"cpu": "100m", "memory": "64Mi"},
        "requests": {"cpu": "10m", "memory": "16Mi"},
    });
    let limits = json!({"limits": {"cpu": "2"}});
    let requests = json!({"requests": {"memory": "1Gi"}});
    for (given, expected) in [
        (json!(null), &built_in),
        (json!({}), &built_in),
        (json!({"limits": {}, "requests": {}}), &built_in),
        (limits.clone(), &limits),
        (requests.clone(), &requests),
    ] {
        let init = json!({"name": "istio-init", "resources": given});
        let init: Container = serde_json::from_value(init).expect("a container");
        let found = container(&Policy::default(), &init, "i").expect("a container");
        assert_eq!(found["resources"], *expected, "{given}");
    }
}

/// The container ends when its connection is redirected, so a policy that never redirects it is refused.
#[test]
fn policies_under_which_it_would_wait_forever() {
    let names = |name: &str| vec![name.to_owned()];
    for (policy, reason) in [
        (
            Policy {
                excluded_outbound_ports: crate::spans(vec![15002]),
                ..Policy::default()
            },
            Some("15002"),
        ),
        (
            Policy {
                excluded_outbound_ports: crate::spans(vec![15001]),
                ..Policy::default()
            },
            None,
        ),
        (
            Policy {
                excluded_interfaces: names("lo"),
                ..Policy::default()
            },
            Some("never redirects it"),
        ),
        (
            Policy {
                excluded_interfaces: names("eth0"),
                ..Policy::default()
            },
            None,
        ),
        (
            Policy {
                loopback_v4: "127.0.0.0/8".parse().unwrap(),
                ..Policy::default()
            },
            Some("never redirects it"),
        ),
        (
            Policy {
                outbound: OutboundRanges::Only(vec![]),
                ..Policy::default()
            },
            None,
        ),
    ] {
        match (made(&policy), reason) {
            (Ok(_), None) => {}
            (Err(error), Some(reason)) => assert!(error.contains(reason), "{error}"),
            (found, _) => panic!("{found:?}: {policy:?}"),
        }
    }
    let excluded = Policy {
        excluded_interfaces: names("lo"),
        ..Policy::default()
    };
    let error = made(&excluded).unwrap_err();
    let rule = sidetrack_common::rule::Rule::OutInterface.describe();
    assert!(error.ends_with(rule), "{error}");
}
