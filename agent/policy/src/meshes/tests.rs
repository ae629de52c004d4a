mod consul;
mod kuma;
mod linkerd;

use serde_json::{Value, json};
use sidetrack_common::addr::Family;

use super::*;
use crate::{
    dialect::Dialect,
    fixture::of_pod,
    mesh::{Enroll, Mesh},
    policy::{DnsCapture, InboundPorts},
    rules,
    select::{Rejected, Skipped, Wanted, wanted},
};
use consul::{CONSUL, consul};
use kuma::kuma;
use linkerd::{LINKERD_INIT, linkerd};

fn facts(pod: Value) -> PodFacts {
    serde_json::from_value(pod).expect("a pod")
}

fn chosen(pod: &PodFacts) -> Wanted {
    wanted(pod, None, &Mesh::new(Enroll::Injected))
}

/// Problems of a pod's settings, as text.
fn problems(pod: Value) -> String {
    let errors = of_pod(&facts(pod)).expect_err("a problem");
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

fn lines(policy: &Policy, family: Family) -> Vec<String> {
    let lines = rules::all(policy, family);
    lines.iter().map(rules::Line::command).collect()
}

#[test]
fn a_pod_is_selected_by_its_own_mesh() {
    assert!(matches!(
        chosen(&facts(linkerd(Some(&LINKERD_INIT), json!({})))),
        Wanted::Enrolled(_)
    ));
    let mut gateway = consul(CONSUL);
    gateway["metadata"]["annotations"] = json!({});
    assert!(matches!(
        chosen(&facts(gateway)),
        Wanted::Skipped(Skipped::NotOfInjector(..))
    ));
    let mut plain = kuma(None, json!({}));
    plain["metadata"]["annotations"]["kuma.io/sidecar-injected"] = "false".into();
    assert!(matches!(
        chosen(&facts(plain)),
        Wanted::Skipped(Skipped::NotOfInjector(..))
    ));
    let mut two = kuma(None, json!({}));
    two["spec"]["containers"] = json!([{"name": "istio-proxy"}]);
    let Wanted::Rejected(Rejected::SeveralMeshes(names)) = chosen(&facts(two)) else {
        panic!("two sidecars");
    };
    assert_eq!(names, "istio and kuma");
    let istio_only = Mesh {
        served: vec![MeshName::Istio],
        ..Mesh::new(Enroll::Injected)
    };
    let other = wanted(&facts(linkerd(None, json!({}))), None, &istio_only);
    assert!(matches!(
        other,
        Wanted::Skipped(Skipped::OtherMesh(MeshName::Linkerd))
    ));
}

#[test]
fn passthrough_before_the_sidecar_is_for_istio() {
    let pod = linkerd(None, json!({"sidetrack.dev/before-sidecar": "passthrough"}));
    assert!(problems(pod).contains("it is for sidecars of Istio"));
}

#[test]
fn acceleration_is_for_pods_with_a_sidecar() {
    let accelerated = |value: &str| {
        let annotations = json!({"sidetrack.dev/accelerate": value});
        let policy = of_pod(&facts(linkerd(None, annotations)));
        policy.expect("a policy").accelerate
    };
    assert!(accelerated("true") && !accelerated("false"));
    let ambient = |value: &str| {
        let pod = json!({
            "metadata": {"annotations": {"sidetrack.dev/accelerate": value}},
            "spec": {"containers": [{"name": "app"}]},
        });
        Policy::of_ambient_pod(&facts(pod))
    };
    let refused = ambient("true").expect_err("a problem");
    assert!(refused[0].to_string().contains("for pods with a sidecar"));
    let policy = ambient("false").expect("a policy");
    assert!(!policy.accelerate && policy.dual_stack && policy.proxy_uids.is_empty());
}
