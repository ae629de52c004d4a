//! Versions, image tags and the rule lists they stand for.

use serde_json::{Value, json};
use sidetrack_common::policy::{
    DIALECT_LOCAL_CAPTURED, DIALECT_SELF_EXEMPT, DIALECT_SSH_IN, DIALECT_TUNNEL_IN,
    DIALECT_TUNNEL_OUT,
};

use super::{Dialect, minor};
use crate::facts::PodFacts;
use crate::mesh_name::MeshName;

#[test]
fn tags() {
    for (tag, expected) in [
        ("1.1.3", Some(1)),
        ("1.12.7-distroless", Some(12)),
        ("1.28", Some(28)),
        ("release-1.1-latest-daily", Some(1)),
        ("v1.12.4", Some(12)),
        ("v2", None),
        ("latest", None),
        ("2.1.0", None),
        ("1.x", None),
    ] {
        assert_eq!(minor(tag), expected, "{tag}");
    }
}

#[test]
fn images() {
    let of = super::of_image;
    assert_eq!(of("docker.io/istio/proxyv2:1.8.1"), Some(Dialect::V1_8));
    assert_eq!(of("registry:5000/istio/proxyv2:1.5.0"), Some(Dialect::V1_5));
    assert_eq!(of("registry:5000/istio/proxyv2"), None);
    assert_eq!(of("istio/proxyv2:1.13.2@sha256:0123"), Some(Dialect::V1_13));
    assert_eq!(of("istio/proxyv2@sha256:0123"), None);
    assert_eq!(of("istio/proxyv2:v1.12.4"), Some(Dialect::V1_8));
}

/// OpenShift Service Mesh has numbers of its own.
#[test]
fn images_of_openshift() {
    for (tag, expected) in [
        ("1.0.8", Some(Dialect::V1_1)),
        ("1.1.18", Some(Dialect::V1_5)),
        ("2.0.11", Some(Dialect::V1_5)),
        ("2.1.6", Some(Dialect::V1_8)),
        ("2.2.9", Some(Dialect::V1_8)),
        ("2.3.0", Some(Dialect::V1_13)),
        ("v2.4.5-4", Some(Dialect::V1_13)),
        ("2.5", Some(Dialect::Current)),
        ("2.6.6", Some(Dialect::Current)),
        ("2.9.0", Some(Dialect::Current)),
        ("3.0.1", Some(Dialect::Current)),
        ("1.24.3", Some(Dialect::Current)),
        ("latest", None),
        ("4.1", None),
    ] {
        for image in [
            "registry.redhat.io/openshift-service-mesh/proxyv2-rhel8",
            "quay.io/maistra/proxyv2-ubi8",
        ] {
            let image = format!("{image}:{tag}");
            assert_eq!(super::of_image(&image), expected, "{image}");
        }
    }
}

#[test]
fn names_lead_back() {
    let of_istio = |dialect: &Dialect| dialect.mesh() == MeshName::Istio;
    for dialect in Dialect::ALL.into_iter().filter(of_istio) {
        assert_eq!(dialect.to_string().parse(), Ok(dialect));
    }
    assert_eq!("1.7".parse(), Ok(Dialect::V1_8));
    let error = "istio".parse::<Dialect>().unwrap_err();
    assert!(
        error.contains("write an Istio version such as 1.12, or current"),
        "{error}"
    );
}

/// The last version of each rule list, and the first of the next.
#[test]
fn versions() {
    for (minor, dialect) in [
        (0, Dialect::V1_1),
        (2, Dialect::V1_1),
        (3, Dialect::V1_5),
        (6, Dialect::V1_5),
        (7, Dialect::V1_8),
        (12, Dialect::V1_8),
        (13, Dialect::V1_13),
        (17, Dialect::V1_13),
        (18, Dialect::Current),
        (u32::MAX, Dialect::Current),
    ] {
        assert_eq!(Dialect::of_minor(minor), dialect, "1.{minor}");
    }
}

#[test]
fn traits_of_each_dialect() {
    let bits = [
        DIALECT_SELF_EXEMPT,
        DIALECT_LOCAL_CAPTURED,
        DIALECT_SSH_IN,
        DIALECT_TUNNEL_IN,
        DIALECT_TUNNEL_OUT,
    ];
    for (dialect, traits) in [
        // self exempt, local captured, ssh in, tunnel in, tunnel out
        (Dialect::V1_1, [false, true, true, false, false]),
        (Dialect::V1_5, [true, false, true, false, false]),
        (Dialect::V1_8, [true, false, true, true, false]),
        (Dialect::V1_13, [true, false, false, true, false]),
        (Dialect::Current, [true, false, false, true, true]),
    ] {
        assert_eq!(
            bits.map(|bit| dialect.bits() & bit != 0),
            traits,
            "{dialect}"
        );
    }
}

#[test]
fn ports_of_each_dialect() {
    for (dialect, sidecar_ports, of_all, of_listed) in [
        (Dialect::V1_1, [].as_slice(), 7, 7),
        (Dialect::V1_5, &[15090], 15006, 7),
        (Dialect::V1_8, &[15090, 15021], 15006, 15006),
        (Dialect::V1_13, &[15090, 15021], 15006, 15006),
        (Dialect::Current, &[15090, 15021], 15006, 15006),
    ] {
        assert_eq!(dialect.sidecar_ports(), sidecar_ports, "{dialect}");
        assert_eq!(dialect.inbound_port(7, true, None), of_all, "{dialect}");
        assert_eq!(dialect.inbound_port(7, false, None), of_listed, "{dialect}");
        assert_eq!(dialect.inbound_port(7, true, Some(9)), 9, "{dialect}");
    }
    // The generation that ignored -z for a list of ports.
    assert_eq!(Dialect::V1_5.inbound_port(7, false, Some(9)), 7);
    assert_eq!(Dialect::V1_8.inbound_port(7, false, Some(9)), 9);
}

/// The sidecar's tag, else istio-init's, else the removed istio-init's.
#[test]
fn images_of_a_pod() {
    let record =
        |image: &str| json!({"sidetrack.dev/istio-init": format!("{{\"image\":\"{image}\"}}")});
    let init = |image: Value| json!([{"name": "istio-init", "image": image}]);
    for (sidecar, init, annotations, expected) in [
        (
            json!("p:1.5.0"),
            init(json!("i:1.1.0")),
            json!({}),
            Some(Dialect::V1_5),
        ),
        (
            json!("p:latest"),
            init(json!("i:1.1.0")),
            json!({}),
            Some(Dialect::V1_1),
        ),
        (
            json!(null),
            init(json!("i:1.8.0")),
            record("r:1.1.0"),
            Some(Dialect::V1_8),
        ),
        (json!("p"), init(json!("i")), record("r:1.1.0"), None),
        (
            json!("p"),
            json!([]),
            record("r:1.1.0"),
            Some(Dialect::V1_1),
        ),
        (
            json!("p"),
            json!([]),
            json!({"sidetrack.dev/istio-init": "{"}),
            None,
        ),
        (json!("p"), json!([]), json!({}), None),
    ] {
        let pod: PodFacts = serde_json::from_value(json!({
            "metadata": {"annotations": annotations},
            "spec": {
                "containers": [{"name": "app", "image": "app:1.13.0"}, {"name": "istio-proxy", "image": sidecar}],
                "initContainers": init,
            },
        }))
        .expect("a pod");
        assert_eq!(
            Dialect::of_pod(&pod),
            expected,
            "{sidecar} {init} {annotations}"
        );
    }
}
