//! AdmissionReviews: pods as injectors leave them, and in every way a little off.

use proptest::{
    collection::vec,
    option,
    prelude::{Just, Strategy, any, prop_oneof},
    sample::{select, subsequence},
    strategy::BoxedStrategy,
};
use serde_json::{Value, json};

pub fn reviews() -> impl Strategy<Value = Value> {
    let version = select(vec!["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]);
    let operation = prop_oneof![9 => Just("CREATE"), 1 => Just("DELETE")];
    (version, operation, any::<bool>(), pods()).prop_map(|(version, operation, dry, pod)| {
        json!({
            "apiVersion": version,
            "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "operation": operation,
                "namespace": "shop",
                "dryRun": dry,
                "object": pod,
            },
        })
    })
}

fn pods() -> impl Strategy<Value = Value> {
    (metadata(), spec()).prop_map(|(metadata, spec)| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
            "fieldOfTheFuture": {"kept": [1, 2.5, null]},
        })
    })
}

fn metadata() -> impl Strategy<Value = Value> {
    let name = select(vec![
        json!({"name": "web-0"}),
        json!({"generateName": "web-"}),
    ]);
    let label = prop_oneof![
        6 => Just(Some("enabled")),
        1 => Just(Some("disabled")),
        2 => Just(None),
    ];
    let annotations = prop_oneof![
        1 => Just(None),
        1 => Just(Some(Value::Null)),
        4 => annotations().prop_map(Some),
    ];
    (name, label, annotations).prop_map(|(mut metadata, label, annotations)| {
        if let Some(label) = label {
            metadata["labels"] = json!({"sidetrack.dev/interception": label, "app": "web"});
        }
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        metadata
    })
}

fn annotations() -> impl Strategy<Value = Value> {
    let all = [
        (
            "sidecar.istio.io/status",
            "{\"initContainers\":[\"istio-init\"]}",
        ),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "3306,6379"),
        ("traffic.sidecar.istio.io/includeInboundPorts", "80"),
        ("sidetrack.dev/dialect", "1.8"),
        (
            "container.apparmor.security.beta.kubernetes.io/istio-init",
            "runtime/default",
        ),
        (
            "sidetrack.dev/istio-init",
            "{\"words\":[\"-p\",\"15009\"],\"image\":\"a:1.1\"}",
        ),
        ("a/b~c", "\u{e9}\u{1f980}\"\\\n"),
    ];
    let bad = [
        (
            "traffic.sidecar.istio.io/excludeOutboundIPRanges",
            "10.0.0.0/99",
        ),
        ("sidecar.istio.io/interceptionMode", "TPROXY"),
        ("sidetrack.dev/istio-init", "{\"words\":7}"),
        ("sidecar.istio.io/inject", "false"),
    ];
    let bad = option::weighted(0.1, select(bad.to_vec()));
    (subsequence(all.to_vec(), 0..=all.len()), bad).prop_map(|(all, bad)| {
        let mut annotations = json!({});
        for (name, value) in all.into_iter().chain(bad) {
            annotations[name] = value.into();
        }
        annotations
    })
}

fn spec() -> impl Strategy<Value = Value> {
    let apps = vec(select(vec!["app", "web", "sidetrack-validation"]), 0..2);
    let apps = prop_oneof![9 => Just(vec!["app"]), 1 => apps];
    (
        apps,
        sidecar(),
        inits(),
        option::weighted(0.1, any::<bool>()),
    )
        .prop_map(|(apps, (native, sidecar), mut inits, host_network)| {
            let apps = apps.iter().map(|name| json!({"name": name, "x": [null]}));
            let mut containers: Vec<Value> = apps.collect();
            match (native, sidecar) {
                (true, Some(sidecar)) => inits.push(sidecar),
                (false, Some(sidecar)) => containers.push(sidecar),
                (_, None) => {}
            }
            let mut spec = json!({"containers": containers});
            if !inits.is_empty() {
                spec["initContainers"] = inits.into();
            }
            if let Some(host_network) = host_network {
                spec["hostNetwork"] = host_network.into();
            }
            spec
        })
}

fn sidecar() -> impl Strategy<Value = (bool, Option<Value>)> {
    let role = prop_oneof![9 => Just("sidecar"), 1 => Just("router")];
    let sidecar = (any::<bool>(), role, image(), env()).prop_map(|(native, role, image, env)| {
        let mut sidecar = json!({"name": "istio-proxy", "args": ["proxy", role], "env": env});
        if let Some(image) = image {
            sidecar["image"] = image.into();
        }
        if native {
            sidecar["restartPolicy"] = "Always".into();
        }
        (native, Some(sidecar))
    });
    prop_oneof![12 => sidecar, 1 => Just((false, None))]
}

fn inits() -> impl Strategy<Value = Vec<Value>> {
    let named = |name: &'static str| Just(json!({"name": name, "image": "busybox"}));
    let other = prop_oneof![
        4 => named("migrate"),
        1 => named("sidetrack-validation"),
        1 => named("istio-validation"),
    ];
    let injected = prop_oneof![
        12 => istio_init().prop_map(|init| vec![init]),
        1 => Just(vec![]),
        1 => vec(istio_init(), 2),
    ];
    (vec(other, 0..3), injected, any::<bool>()).prop_map(|(mut others, mut injected, first)| {
        // A pod has one container of a name, but for istio-init here.
        others.sort_by_key(|init| init["name"].to_string());
        others.dedup_by_key(|init| init["name"].clone());
        if first {
            injected.extend(others);
            return injected;
        }
        others.extend(injected);
        others
    })
}

fn istio_init() -> BoxedStrategy<Value> {
    let resources = select(vec![
        None,
        Some(json!({})),
        Some(json!({"limits": {"cpu": "2", "memory": "1Gi"}})),
    ]);
    let program = option::of(Just("istio-iptables".to_owned()));
    let words = (program, vec(flag(), 0..6));
    (words, any::<bool>(), image(), env(), resources)
        .prop_map(|((program, flags), as_command, image, env, resources)| {
            let words: Vec<String> = program.into_iter().chain(flags.concat()).collect();
            let field = if as_command { "command" } else { "args" };
            let mut init = json!({
                "name": "istio-init",
                "env": env,
                "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
            });
            init[field] = words.into();
            if let Some(image) = image {
                init["image"] = image.into();
            }
            if let Some(resources) = resources {
                init["resources"] = resources;
            }
            init
        })
        .boxed()
}

/// A flag and its value, in one of the forms; a few that cannot be used.
fn flag() -> impl Strategy<Value = Vec<String>> {
    let good = select(vec![
        ("-p", "15002"),
        ("--envoy-port", "15003"),
        ("-z", "15005"),
        ("-u", "1338"),
        ("-u", "0"),
        ("-u", ""),
        ("-g", "1339,1340"),
        ("-m", "REDIRECT"),
        ("-i", "*"),
        ("-i", "10.0.0.0/8"),
        ("-x", ""),
        ("-b", "80,443"),
        ("-b", "*"),
        ("-d", "15090,15021,15020"),
        ("-o", "3306"),
        ("-c", "eth1"),
        ("--probe-timeout", "5s"),
    ]);
    let odd = select(vec![
        ("-u", "4000000000"),
        ("-p", "http"),
        ("-m", "TPROXY"),
        ("-m", "NONE"),
        ("-k", "virbr0"),
    ]);
    let flag = prop_oneof![40 => good, 1 => odd];
    let pair = (flag, any::<bool>()).prop_map(|((flag, value), attached)| {
        if attached {
            vec![format!("{flag}={value}")]
        } else {
            vec![flag.to_owned(), value.to_owned()]
        }
    });
    prop_oneof![
        12 => pair,
        1 => Just(vec!["--redirect-dns".to_owned()]),
    ]
}

fn image() -> impl Strategy<Value = Option<&'static str>> {
    select(vec![
        None,
        Some("docker.io/istio/proxyv2:1.5.0"),
        Some("docker.io/istio/proxyv2:1.12.7-distroless"),
        Some("registry.example.com/proxy@sha256:0123"),
        Some("gcr.io/istio-release/proxy_init:release-1.1-latest-daily"),
    ])
}

fn env() -> impl Strategy<Value = Vec<Value>> {
    let variable = select(vec![
        json!({"name": "ISTIO_DUAL_STACK", "value": "true"}),
        json!({"name": "ISTIO_DUAL_STACK", "value": "false"}),
        json!({"name": "ISTIO_DUAL_STACK"}),
        json!({"name": "ISTIO_OUTBOUND_OWNER_GROUPS", "value": "1000,1001"}),
        json!({"name": "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "value": "7"}),
        json!({"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}),
        json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        json!({"name": "SECRET", "value": "hunter2"}),
    ]);
    vec(variable, 0..4)
}
