//! Which pods are enrolled: one table for each criterion of the selection.

use serde_json::{Value, json};

use super::{
    Enroll, Holder, INJECT, NamespaceLabels, Prospect, Rejected, Skipped, Wanted, is_starting,
    prospect, wanted, wanted_in,
};
use crate::{
    Dialect,
    facts::PodFacts,
    mesh::{Mesh, MeshName, VirtualInterfaces},
    policy::ReturnRoute,
};

fn pod(value: Value) -> PodFacts {
    serde_json::from_value(value).expect("a Pod")
}

/// A pod that every agent with `--enroll injected` enrolls, with some fields set.
fn injected(fields: &[(&str, Value)]) -> PodFacts {
    let mut value = json!({
        "metadata": {"name": "web", "annotations": {}, "labels": {}},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy", "args": ["proxy", "sidecar"]}]},
        "status": {},
    });
    for (pointer, field) in fields {
        let (parent, name) = pointer.rsplit_once('/').expect("a path");
        value.pointer_mut(parent).expect("the parent")[name.replace("~1", "/")] = field.clone();
    }
    pod(value)
}

fn selected(pod: &PodFacts, enroll: Enroll, namespace_label: Option<&str>) -> Result<(), Skipped> {
    match wanted(pod, namespace_label, &Mesh::new(enroll)) {
        Wanted::Enrolled(_) => Ok(()),
        Wanted::Skipped(reason) => Err(reason),
        Wanted::Rejected(reason) => panic!("{reason}"),
    }
}

#[test]
fn labels_of_pod_and_namespace() {
    use Enroll::{Injected, Labeled};
    use Holder::Namespace;
    use Skipped::{NotOptedIn, OptedOut};
    let (enabled, disabled) = (Some("enabled"), Some("disabled"));
    let other = |value: &str, holder| Err(Skipped::OtherLabel(value.to_owned(), holder));
    let out = |holder| Err(OptedOut(holder));
    for (pod_label, namespace_label, labeled, all) in [
        (None, None, Err(NotOptedIn), Ok(())),
        (None, enabled, Ok(()), Ok(())),
        (None, disabled, out(Namespace), out(Namespace)),
        (None, Some("true"), other("true", Namespace), Ok(())),
        (enabled, None, Ok(()), Ok(())),
        (enabled, enabled, Ok(()), Ok(())),
        (enabled, disabled, out(Namespace), out(Namespace)),
        (disabled, None, out(Holder::Pod), out(Holder::Pod)),
        (disabled, enabled, out(Holder::Pod), out(Holder::Pod)),
        (Some("yes"), None, other("yes", Holder::Pod), Ok(())),
        (Some("yes"), enabled, Ok(()), Ok(())),
    ] {
        let labels = pod_label.map_or(json!({}), |label| json!({super::LABEL: label}));
        let pod = injected(&[("/metadata/labels", labels)]);
        let case = format!("pod {pod_label:?}, namespace {namespace_label:?}");
        assert_eq!(selected(&pod, Labeled, namespace_label), labeled, "{case}");
        assert_eq!(selected(&pod, Injected, namespace_label), all, "{case}");
    }
}

#[test]
fn a_label_that_says_nothing_is_remarked_on() {
    let label = |value: &str| injected(&[("/metadata/labels", json!({super::LABEL: value}))]);
    let remarks = |pod: &PodFacts, namespace| {
        let Wanted::Enrolled(policy) = wanted(pod, namespace, &Mesh::new(Enroll::Labeled)) else {
            panic!("the pod is to be enrolled");
        };
        let remarks = policy.remarks.into_iter();
        let of_labels = remarks.filter(|it| it.contains(super::LABEL));
        of_labels.collect::<Vec<_>>()
    };
    let remark = |value: &str, on: &str| {
        let label = super::LABEL;
        format!(
            "label {label} is {value:?} on {on} and has no effect; write \"enabled\" or \"disabled\""
        )
    };
    let found = remarks(&label("false"), Some("enabled"));
    assert_eq!(found, [remark("false", "the pod")]);
    let found = remarks(&label("enabled"), Some("yes"));
    assert_eq!(found, [remark("yes", "its namespace")]);
    assert_eq!(remarks(&label("enabled"), None), [""; 0]);
}

/// A gRPC client without Envoy has a container of the sidecar's name, and nothing that receives connections.
#[test]
fn a_pod_without_envoy_is_skipped() {
    let with = |value: &str, more: Value| {
        let env = json!([{"name": "DISABLE_ENVOY", "value": value}]);
        let proxy = json!({"name": "istio-proxy", "args": ["proxy", "sidecar"], "env": env});
        injected(&[("/spec/containers", json!([{"name": "app"}, proxy, more]))])
    };
    let plain = json!({"name": "other"});
    for off in ["true", "1", "T", "TRUE"] {
        let pod = with(off, plain.clone());
        assert_eq!(
            selected(&pod, Enroll::Injected, None),
            Err(Skipped::Proxyless),
            "{off}"
        );
        assert_eq!(pod.meshes().count(), 0);
    }
    for on in ["false", "0", "", "yes"] {
        let pod = with(on, plain.clone());
        assert_eq!(selected(&pod, Enroll::Injected, None), Ok(()), "{on}");
    }
    // Of two the last one counts, and a value from elsewhere hides it.
    for mut last in [
        json!({"value": "false"}),
        json!({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    ] {
        last["name"] = "DISABLE_ENVOY".into();
        let env = json!([{"name": "DISABLE_ENVOY", "value": "true"}, last]);
        let proxy = json!({"name": "istio-proxy", "args": ["proxy", "sidecar"], "env": env});
        let pod = injected(&[("/spec/containers", json!([{"name": "app"}, proxy]))]);
        assert_eq!(selected(&pod, Enroll::Injected, None), Ok(()));
    }
    // The sidecar of another mesh is one nevertheless.
    let linkerd = with("true", json!({"name": "linkerd-proxy"}));
    assert_eq!(selected(&linkerd, Enroll::Injected, None), Ok(()));
    assert!(
        Skipped::Proxyless
            .to_string()
            .contains("DISABLE_ENVOY is true")
    );
    // Nor is it one for ambient mode.
    let mesh = Mesh {
        ambient: true,
        ..Mesh::new(Enroll::Injected)
    };
    let ambient = NamespaceLabels {
        dataplane_mode: Some("ambient"),
        ..NamespaceLabels::default()
    };
    let pod = with("true", plain);
    assert!(matches!(
        wanted_in(&pod, ambient, None, &mesh),
        Wanted::Enrolled(_)
    ));
    assert!(matches!(
        wanted_in(&pod, NamespaceLabels::default(), None, &mesh),
        Wanted::Skipped(Skipped::Proxyless)
    ));
}

/// As istio-cni reads it: the label's value, whatever the annotation says, and every form of false.
#[test]
fn forms_of_an_injector_that_is_turned_off() {
    for (label, annotation, is_off) in [
        (None, Some("False"), true),
        (None, Some("0"), true),
        (None, Some("no"), false),
        (Some("FALSE"), Some("true"), true),
        (Some("true"), Some("false"), false),
        (Some(""), Some("false"), false),
    ] {
        let labels = json!({INJECT: label.unwrap_or_default()});
        let annotations = json!({INJECT: annotation.unwrap_or_default()});
        let fields = [
            ("/metadata/labels", labels),
            ("/metadata/annotations", annotations),
        ];
        let fields = &fields[usize::from(label.is_none())..];
        let found = selected(&injected(fields), Enroll::Injected, None);
        let expected = if is_off {
            Err(Skipped::NotInjected)
        } else {
            Ok(())
        };
        assert_eq!(found, expected, "{label:?} {annotation:?}");
    }
}

#[test]
fn what_a_manifest_alone_shows() {
    use Enroll::{Injected, Labeled};
    use Skipped::{HostNetwork, NotOptedIn, OptedOut};
    let depends = |reason| Prospect::IfNamespaceOptsIn(reason);
    let other = || Skipped::OtherLabel("yes".to_owned(), Holder::Pod);
    for (pod_label, labeled, all) in [
        (None, depends(NotOptedIn), Prospect::Selected),
        (Some("enabled"), Prospect::Selected, Prospect::Selected),
        (Some("yes"), depends(other()), Prospect::Selected),
        (
            Some("disabled"),
            Prospect::Skipped(OptedOut(Holder::Pod)),
            Prospect::Skipped(OptedOut(Holder::Pod)),
        ),
    ] {
        let labels = pod_label.map_or(json!({}), |label| json!({super::LABEL: label}));
        let pod = injected(&[("/metadata/labels", labels)]);
        assert_eq!(
            prospect(&pod, &Mesh::new(Labeled)),
            labeled,
            "{pod_label:?}"
        );
        assert_eq!(prospect(&pod, &Mesh::new(Injected)), all, "{pod_label:?}");
    }
    let host = injected(&[("/spec/hostNetwork", json!(true))]);
    assert_eq!(
        prospect(&host, &Mesh::new(Injected)),
        Prospect::Skipped(HostNetwork)
    );
    let mut mesh = Mesh::new(Labeled);
    mesh.ambient = true;
    assert_eq!(prospect(&ambient(&[]), &mesh), Prospect::Selected);
    mesh.served = vec![MeshName::Kuma];
    let of_other = Prospect::Skipped(Skipped::OtherMesh(MeshName::Istio));
    assert_eq!(prospect(&injected(&[]), &mesh), of_other);
}

#[test]
fn reasons_in_the_pod_itself() {
    let router = json!([{"name": "istio-proxy", "args": ["proxy", "router"]}]);
    let inject = |value: &str| json!({INJECT: value});
    for (field, value, expected) in [
        ("/spec/hostNetwork", json!(true), Err(Skipped::HostNetwork)),
        ("/spec/hostNetwork", json!(false), Ok(())),
        (
            "/spec/containers",
            json!([{"name": "app"}]),
            Err(Skipped::NoSidecar),
        ),
        ("/spec/containers", router, Err(Skipped::Gateway)),
        (
            "/metadata/labels",
            inject("false"),
            Err(Skipped::NotInjected),
        ),
        (
            "/metadata/annotations",
            inject("false"),
            Err(Skipped::NotInjected),
        ),
        ("/metadata/annotations", inject("true"), Ok(())),
        ("/status/phase", json!("Succeeded"), Err(Skipped::Completed)),
        ("/status/phase", json!("Failed"), Err(Skipped::Completed)),
        ("/status/phase", json!("Running"), Ok(())),
        ("/status/phase", json!("Pending"), Ok(())),
    ] {
        let pod = injected(&[(field, value.clone())]);
        let case = format!("{field}: {value}");
        assert_eq!(selected(&pod, Enroll::Injected, None), expected, "{case}");
    }
    let mode = json!({"sidecar.istio.io/interceptionMode": "NONE"});
    let none = injected(&[("/metadata/annotations", mode)]);
    assert_eq!(
        selected(&none, Enroll::Injected, None),
        Err(Skipped::ModeNone)
    );
}

#[test]
fn the_inject_label_wins_over_the_annotation() {
    let both = |label: &str, annotation: &str| {
        injected(&[
            ("/metadata/labels", json!({INJECT: label})),
            ("/metadata/annotations", json!({INJECT: annotation})),
        ])
    };
    let by_label = both("true", "false");
    assert_eq!(selected(&by_label, Enroll::Injected, None), Ok(()));
    let skipped = both("false", "true");
    let reason = selected(&skipped, Enroll::Injected, None);
    assert_eq!(reason, Err(Skipped::NotInjected));
}

/// `proxy router` counts only before the first flag: `--serviceCluster router` is an app's name.
#[test]
fn gateways() {
    for (command, args, gateway) in [
        (
            json!(null),
            json!(["proxy", "router", "--domain", "x"]),
            true,
        ),
        (json!(["pilot-agent", "proxy", "router"]), json!(null), true),
        (json!(["pilot-agent"]), json!(["proxy", "router"]), true),
        (
            json!(null),
            json!(["proxy", "sidecar", "--serviceCluster", "router"]),
            false,
        ),
        (json!(null), json!(["proxy", "waypoint"]), true),
        (json!(null), json!(["proxy", "sidecar"]), false),
        (json!(null), json!(["proxy", "--domain", "x"]), false),
        (json!(null), json!(null), false),
    ] {
        let proxy = json!([{"name": "istio-proxy", "command": command, "args": args}]);
        let pod = injected(&[("/spec/containers", proxy)]);
        let expected = if gateway {
            Err(Skipped::Gateway)
        } else {
            Ok(())
        };
        assert_eq!(
            selected(&pod, Enroll::Injected, None),
            expected,
            "{command} {args}"
        );
    }
}

#[test]
fn a_native_sidecar_restarts_always() {
    for (policy, found) in [
        (json!("Always"), true),
        (json!("Never"), false),
        (json!(null), false),
    ] {
        let pod = injected(&[
            ("/spec/containers", json!([{"name": "app"}])),
            (
                "/spec/initContainers",
                json!([
                    {"name": "first", "restartPolicy": "Always"},
                    {"name": "istio-proxy", "restartPolicy": policy},
                ]),
            ),
        ]);
        let name = pod.sidecar().map(|container| container.name);
        assert_eq!(name, found.then_some("istio-proxy"), "{policy}");
    }
    assert_eq!(PodFacts::default().sidecar(), None);
}

#[test]
fn interfaces_that_the_node_or_the_mesh_does_not_support() {
    let annotation =
        |name: &str, value: &str| injected(&[("/metadata/annotations", json!({name: value}))]);
    let plain = injected(&[]);
    let excluded = annotation("traffic.sidecar.istio.io/excludeInterfaces", "eth1,eth2");
    let virtual_ = annotation("istio.io/reroute-virtual-interfaces", "tap0");
    let tap0 = Some(Rejected::VirtualInterfaces("tap0".to_owned()));
    let interfaces = |names: &str| Some(Rejected::Interfaces(names.to_owned()));
    for (pod, virtual_interfaces, sees_interfaces, expected) in [
        (&plain, VirtualInterfaces::Refuse, true, None),
        (&plain, VirtualInterfaces::Refuse, false, None),
        (&plain, VirtualInterfaces::LocalOnly, false, None),
        (&excluded, VirtualInterfaces::Refuse, true, None),
        (
            &excluded,
            VirtualInterfaces::Refuse,
            false,
            interfaces("eth1,eth2"),
        ),
        (&excluded, VirtualInterfaces::LocalOnly, true, None),
        (&virtual_, VirtualInterfaces::Full, true, None),
        (
            &virtual_,
            VirtualInterfaces::Full,
            false,
            interfaces("tap0"),
        ),
        (&virtual_, VirtualInterfaces::Refuse, true, tap0.clone()),
        (&virtual_, VirtualInterfaces::Refuse, false, tap0),
        (&virtual_, VirtualInterfaces::LocalOnly, true, None),
        (
            &virtual_,
            VirtualInterfaces::LocalOnly,
            false,
            interfaces("tap0"),
        ),
    ] {
        let mesh = Mesh {
            virtual_interfaces,
            sees_interfaces,
            ..Mesh::new(Enroll::Injected)
        };
        let found = match wanted(pod, None, &mesh) {
            Wanted::Rejected(reason) => Some(reason),
            Wanted::Enrolled(_) => None,
            Wanted::Skipped(reason) => panic!("{reason}"),
        };
        assert_eq!(found, expected, "{virtual_interfaces:?} {sees_interfaces}");
    }
}

#[test]
fn rejected_pods_name_every_problem_and_its_cure() {
    let reason = |annotations: Value| {
        let pod = injected(&[("/metadata/annotations", annotations)]);
        match wanted(&pod, None, &Mesh::new(Enroll::Injected)) {
            Wanted::Rejected(reason) => reason.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let two = reason(json!({
        "traffic.sidecar.istio.io/excludeOutboundPorts": "http",
        "sidetrack.dev/before-sidecar": "maybe",
    }));
    assert!(
        two.contains("excludeOutboundPorts") && two.contains("; "),
        "{two}"
    );
    assert!(two.contains("write passthrough or refuse"), "{two}");
    let mode = "sidecar.istio.io/interceptionMode";
    let old = reason(json!({mode: "TPROXY", "sidetrack.dev/dialect": "1.5"}));
    assert!(
        old.contains("Istio 1.7 or later") && old.contains("to REDIRECT"),
        "{old}"
    );
    let both = reason(json!({mode: "TPROXY", "istio.io/reroute-virtual-interfaces": "tap0"}));
    assert!(
        both.contains("tap0") && both.contains("to REDIRECT"),
        "{both}"
    );
}

#[test]
fn tproxy_needs_a_kernel_that_reports_interfaces() {
    let annotation = json!({"sidecar.istio.io/interceptionMode": "TPROXY"});
    let pod = injected(&[("/metadata/annotations", annotation)]);
    for sees_interfaces in [true, false] {
        let mesh = Mesh {
            sees_interfaces,
            ..Mesh::new(Enroll::Injected)
        };
        match wanted(&pod, None, &mesh) {
            Wanted::Enrolled(policy) => {
                assert!(sees_interfaces);
                assert_eq!(policy.compile().row().transparent_mark, 1337);
                let route = ReturnRoute {
                    mark: 1337,
                    table: 133,
                };
                assert_eq!(policy.return_route(), Some(route));
            }
            Wanted::Rejected(reason) => {
                assert_eq!(
                    (reason, sees_interfaces),
                    (Rejected::TproxyWithoutInterfaces, false)
                );
            }
            other @ Wanted::Skipped(_) => panic!("{other:?}"),
        }
    }
}

#[test]
fn starting_pods() {
    for (phase, starting) in [
        (json!(null), true),
        (json!("Pending"), true),
        (json!("Running"), false),
        (json!("Succeeded"), false),
    ] {
        let pod = injected(&[("/status/phase", phase.clone())]);
        assert_eq!(is_starting(&pod), starting, "{phase}");
    }
    assert!(is_starting(&PodFacts::default()));
}

#[test]
fn sandboxed_pods_are_rejected() {
    let rejected = |class: Value| {
        let pod = injected(&[("/spec/runtimeClassName", class)]);
        match wanted(&pod, None, &Mesh::new(Enroll::Injected)) {
            Wanted::Rejected(reason) => Some(reason),
            _ => None,
        }
    };
    for class in [
        "gvisor",
        "runsc",
        "kata-qemu",
        "Kata",
        "aws-firecracker",
        "peerpods",
    ] {
        let reason = Rejected::Sandboxed(class.to_owned());
        assert_eq!(rejected(json!(class)), Some(reason));
    }
    for class in [json!("nvidia"), json!("runc"), json!(null)] {
        assert_eq!(rejected(class), None);
    }
}

/// A class may have any name.
#[test]
fn sandboxed_pods_are_rejected_by_the_handler_of_their_class() {
    let labels = NamespaceLabels::default();
    let mesh = Mesh::new(Enroll::Injected);
    for (class, handler, is_rejected) in [
        (Some("secure"), Some("kata-clh"), true),
        (Some("secure"), Some("runsc"), true),
        (Some("secure"), Some("crun"), false),
        (Some("secure"), None, false),
        (Some("gvisor"), Some("crun"), true),
        (None, Some("kata"), false),
    ] {
        let pod = injected(&[("/spec/runtimeClassName", json!(class))]);
        let wanted = wanted_in(&pod, labels, handler, &mesh);
        let Wanted::Rejected(reason) = wanted else {
            assert!(!is_rejected, "{class:?} {handler:?}");
            continue;
        };
        assert!(is_rejected, "{class:?} {handler:?}: {reason}");
        let names_handler = class == Some("secure");
        assert_eq!(
            reason.to_string().contains("whose handler is"),
            names_handler
        );
    }
}

/// A pod in ambient mode by its own label, with some fields set.
fn ambient(fields: &[(&str, Value)]) -> PodFacts {
    let labels = json!({"istio.io/dataplane-mode": "ambient"});
    let containers = json!([{"name": "app"}]);
    let own = [
        ("/metadata/labels", labels),
        ("/spec/containers", containers),
    ];
    injected(&[&own, fields].concat())
}

fn in_ambient_mesh(pod: &PodFacts, dataplane_mode: Option<&str>, mesh: &Mesh) -> Wanted {
    let labels = NamespaceLabels {
        dataplane_mode,
        ..NamespaceLabels::default()
    };
    let mesh = Mesh {
        ambient: true,
        ..mesh.clone()
    };
    wanted_in(pod, labels, None, &mesh)
}

#[test]
fn ambient_mode_is_chosen_by_labels_of_pod_and_namespace() {
    for (own, namespace, is_chosen) in [
        (None, None, false),
        (None, Some("ambient"), true),
        (None, Some("none"), false),
        (Some("ambient"), None, true),
        (Some("ambient"), Some("none"), true),
        (Some("none"), Some("ambient"), false),
        (Some("other"), Some("ambient"), true),
        (Some("other"), None, false),
    ] {
        let labels = own.map_or(json!({}), |own| json!({"istio.io/dataplane-mode": own}));
        let pod = ambient(&[("/metadata/labels", labels)]);
        for enroll in [Enroll::Labeled, Enroll::Injected] {
            let case = format!("pod {own:?}, namespace {namespace:?}");
            match in_ambient_mesh(&pod, namespace, &Mesh::new(enroll)) {
                Wanted::Enrolled(_) => assert!(is_chosen, "{case}"),
                Wanted::Skipped(Skipped::NotAmbient) => assert!(!is_chosen, "{case}"),
                other => panic!("{case}: {other:?}"),
            }
        }
    }
}

#[test]
fn without_the_flag_no_pod_is_in_ambient_mode() {
    let labels = NamespaceLabels {
        dataplane_mode: Some("ambient"),
        interception: Some("enabled"),
    };
    for enroll in [Enroll::Labeled, Enroll::Injected] {
        let found = wanted_in(&ambient(&[]), labels, None, &Mesh::new(enroll));
        let is_skipped = matches!(found, Wanted::Skipped(Skipped::NoSidecar));
        assert!(is_skipped, "{found:?}");
    }
}

#[test]
fn pods_that_istio_cni_leaves_out_of_ambient_mode() {
    let mesh = Mesh::new(Enroll::Injected);
    let status = json!({"sidecar.istio.io/status": "{}"});
    for (field, value, reason) in [
        ("/spec/hostNetwork", json!(true), Skipped::HostNetwork),
        ("/metadata/annotations", status, Skipped::NotAmbient),
        ("/status/phase", json!("Succeeded"), Skipped::Completed),
        (
            "/metadata/labels",
            json!({"istio.io/dataplane-mode": "ambient", super::LABEL: "disabled"}),
            Skipped::OptedOut(Holder::Pod),
        ),
    ] {
        match in_ambient_mesh(&ambient(&[(field, value)]), None, &mesh) {
            Wanted::Skipped(found) => assert_eq!(found, reason, "{field}"),
            other => panic!("{field}: {other:?}"),
        }
    }
    let no_status = json!({"sidecar.istio.io/status": ""});
    let pod = ambient(&[("/metadata/annotations", no_status)]);
    let found = in_ambient_mesh(&pod, None, &mesh);
    assert!(matches!(found, Wanted::Enrolled(_)), "{found:?}");
}

#[test]
fn a_sidecar_wins_over_ambient_mode() {
    let label = json!({"istio.io/dataplane-mode": "ambient"});
    let pod = injected(&[("/metadata/labels", label)]);
    let found = in_ambient_mesh(&pod, Some("ambient"), &Mesh::new(Enroll::Injected));
    let Wanted::Enrolled(policy) = found else {
        panic!("{found:?}");
    };
    assert_eq!(policy.dialect, Dialect::Current);
}

#[test]
fn ambient_mode_needs_a_kernel_that_reports_interfaces() {
    let mesh = Mesh {
        sees_interfaces: false,
        ..Mesh::new(Enroll::Injected)
    };
    let found = in_ambient_mesh(&ambient(&[]), None, &mesh);
    let is_rejected = matches!(found, Wanted::Rejected(Rejected::AmbientWithoutInterfaces));
    assert!(is_rejected, "{found:?}");
}
