//! The webhook's part of the chart.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use lab::{
    command::die_with_parent,
    product::{LABEL, REPLACED},
    webhook::server::program,
};
use serde_json::{Value, json};

use super::{NAMESPACE, helm, helm_with, of_kind, parses_strictly};

fn enabled(more: Value) -> Vec<Value> {
    let mut values = json!({"webhook": {"enabled": true}});
    for (name, value) in more.as_object().into_iter().flatten() {
        values[name] = value.clone();
        values["webhook"]["enabled"] = true.into();
    }
    let objects = helm(&values).expect("the chart");
    for object in &objects {
        parses_strictly(object);
    }
    objects
}

fn webhooks(objects: &[Value]) -> &[Value] {
    let webhooks = &of_kind(objects, "MutatingWebhookConfiguration")["webhooks"];
    webhooks.as_array().expect("webhooks")
}

/// Those for an operation.
fn webhooks_for<'a>(objects: &'a [Value], operation: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = webhooks(objects).iter();
    all.filter(move |webhook| webhook["rules"][0]["operations"] == json!([operation]))
}

/// Which pods the API server sends to a webhook, by the label of their namespace and their own.
fn called(webhook: &Value, namespace: Option<&str>, pod: Option<&str>) -> bool {
    let fits = |selector: &Value, label: Option<&str>| {
        let all = selector["matchExpressions"].as_array();
        let mut about = all.into_iter().flatten().filter(|it| it["key"] == LABEL);
        about.all(|expression| {
            let values = expression["values"].as_array().expect("values");
            let listed = label.is_some_and(|label| values.contains(&label.into()));
            match expression["operator"].as_str() {
                Some("In") => listed,
                Some("NotIn") => !listed,
                other => panic!("operator {other:?}"),
            }
        })
    };
    fits(&webhook["namespaceSelector"], namespace) && fits(&webhook["objectSelector"], pod)
}

#[test]
fn each_pod_that_may_be_enrolled_is_sent_once_and_on_the_right_path() {
    for enroll in ["labeled", "injected"] {
        let objects = enabled(json!({"enroll": enroll}));
        for namespace in [None, Some("enabled"), Some("disabled"), Some("x")] {
            for pod in [None, Some("enabled"), Some("disabled"), Some("x")] {
                let labels = [namespace, pod];
                let may_enroll = !labels.contains(&Some("disabled"))
                    && (enroll == "injected" || labels.contains(&Some("enabled")));
                let paths: Vec<&str> = webhooks_for(&objects, "CREATE")
                    .filter(|webhook| called(webhook, namespace, pod))
                    .map(|webhook| &webhook["clientConfig"]["service"]["path"])
                    .map(|path| path.as_str().expect("a path"))
                    .collect();
                let expected = match (may_enroll, namespace) {
                    (false, _) => vec![],
                    (true, Some("enabled")) => vec!["/mutate/enabled"],
                    (true, _) => vec!["/mutate"],
                };
                assert_eq!(paths, expected, "{enroll}: {namespace:?} {pod:?}");
            }
        }
    }
}

#[test]
fn the_webhook_asks_for_nothing() {
    let objects = enabled(json!({"webhook": {"failurePolicy": "Fail", "replicas": 3}}));
    for webhook in webhooks(&objects) {
        assert_eq!(webhook["admissionReviewVersions"], json!(["v1", "v1beta1"]));
        assert_eq!(webhook["sideEffects"], "None");
        assert_eq!(webhook["reinvocationPolicy"], "IfNeeded");
        let others = &webhook["namespaceSelector"]["matchExpressions"][0];
        assert_eq!(others["operator"], "NotIn");
        assert_eq!(others["values"], json!(["kube-system", NAMESPACE]));
        let service = &webhook["clientConfig"]["service"];
        let there = of_kind(&objects, "Service");
        assert_eq!(service["name"], there["metadata"]["name"]);
        assert_eq!(service["port"], there["spec"]["ports"][0]["port"]);
    }
    for webhook in webhooks_for(&objects, "CREATE") {
        assert_eq!(webhook["failurePolicy"], "Fail");
        // No other pod waits for the webhook: its own network's would wait for ever.
        let condition = webhook["matchConditions"][0]["expression"].as_str();
        let named = condition.is_some_and(|it| {
            let mut meshes = [
                "istio-init",
                "linkerd-init",
                "kuma-init",
                "consul-connect-inject-init",
            ]
            .iter();
            meshes.all(|name| it.contains(&format!("'{name}'")))
        });
        assert!(named, "{condition:?}");
    }
    // Updates of pods are never in the way.
    let updates: Vec<_> = webhooks_for(&objects, "UPDATE").collect();
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0]["failurePolicy"], "Ignore");
    let condition = updates[0]["matchConditions"][0]["expression"].as_str();
    let replaced = format!("it.name in ['{}']", REPLACED.join("', '"));
    assert!(
        condition.is_some_and(|it| it.contains(&replaced)),
        "{condition:?}"
    );
    let deployment = of_kind(&objects, "Deployment");
    assert_eq!(deployment["spec"]["replicas"], 3);
    let template = &deployment["spec"]["template"];
    let pod = &template["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let security = &pod["containers"][0]["securityContext"];
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(pod["volumes"][0]["secret"]["defaultMode"], 0o440);
    // The DaemonSet is not to take its pods for its own, and the Service not the agents.
    let labels = template["metadata"]["labels"].as_object().expect("labels");
    let selects = |selector: &Value, labels: &serde_json::Map<String, Value>| {
        let all = selector.as_object().expect("a selector");
        all.iter()
            .all(|(name, value)| labels.get(name) == Some(value))
    };
    let agents = &of_kind(&objects, "DaemonSet")["spec"];
    assert!(!selects(&agents["selector"]["matchLabels"], labels));
    let of_agents = agents["template"]["metadata"]["labels"].as_object();
    let service = &of_kind(&objects, "Service")["spec"]["selector"];
    assert!(selects(service, labels));
    assert!(!selects(service, of_agents.expect("labels")));
    let budget = &of_kind(&objects, "PodDisruptionBudget")["spec"];
    assert!(selects(&budget["selector"]["matchLabels"], labels));
}

#[test]
fn generated_certificates_outlast_an_upgrade() {
    let objects = enabled(json!({}));
    let secret = of_kind(&objects, "Secret").clone();
    let authority = &secret["data"]["ca.crt"];
    for webhook in webhooks(&objects) {
        assert_eq!(&webhook["clientConfig"]["caBundle"], authority);
    }
    let values = json!({"webhook": {"enabled": true}});
    let again = helm_with(&values, std::slice::from_ref(&secret)).expect("the chart");
    for webhook in webhooks(&again) {
        assert_eq!(&webhook["clientConfig"]["caBundle"], authority);
    }
    let anew = enabled(json!({}));
    assert_ne!(&webhooks(&anew)[0]["clientConfig"]["caBundle"], authority);
}

#[test]
fn other_certificates() {
    let own = json!({"from": "secret", "secretName": "mine", "caBundle": "TUlORQ=="});
    let objects = enabled(json!({"webhook": {"certificates": own}}));
    assert!(objects.iter().all(|object| object["kind"] != "Secret"));
    let pod = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "mine");
    assert_eq!(
        webhooks(&objects)[0]["clientConfig"]["caBundle"],
        "TUlORQ=="
    );

    let manager = |certificates: Value| enabled(json!({"webhook": {"certificates": certificates}}));
    let objects = manager(json!({"from": "cert-manager"}));
    let named = |name: &str| {
        let found = objects
            .iter()
            .find(|it| it["kind"] == "Certificate" && it["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no Certificate {name}"))
    };
    let leaf = &named("sidetrack-webhook")["spec"];
    let service = format!("sidetrack-webhook.{NAMESPACE}.svc");
    assert_eq!(leaf["dnsNames"], json!([service]));
    assert_eq!(leaf["issuerRef"]["name"], "sidetrack-webhook-ca");
    assert_eq!(named("sidetrack-webhook-ca")["spec"]["isCA"], true);
    let pod = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(
        pod["volumes"][0]["secret"]["secretName"],
        leaf["secretName"]
    );
    let configuration = of_kind(&objects, "MutatingWebhookConfiguration");
    let inject = &configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
    assert_eq!(*inject, format!("{NAMESPACE}/sidetrack-webhook"));

    let issuer = json!({"kind": "ClusterIssuer", "name": "internal"});
    let objects = manager(json!({"from": "cert-manager", "issuerRef": issuer}));
    assert!(objects.iter().all(|object| object["kind"] != "Issuer"));
    assert_eq!(
        of_kind(&objects, "Certificate")["spec"]["issuerRef"],
        issuer
    );
}

/// The binary starts with the arguments, the configuration and the certificate that the chart gives it.
#[test]
fn the_binary_takes_what_the_chart_gives_it() {
    let defaults = json!({"proxyUid": 1500});
    let objects = enabled(json!({"defaults": defaults, "virtualInterfaces": "local-only"}));
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &[u8]| {
        fs::write(dir.path().join(name), text).expect("a file");
    };
    let secret: k8s_openapi::api::core::v1::Secret =
        serde_json::from_value(of_kind(&objects, "Secret").clone()).expect("a Secret");
    for (name, text) in secret.data.expect("data") {
        write(&name, &text.0);
    }
    let config = of_kind(&objects, "ConfigMap")["data"]["mesh.yaml"].as_str();
    write("mesh.yaml", config.expect("a file").as_bytes());
    let container = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"].as_array().expect("arguments").iter();
    let args = args.map(|arg| {
        let arg = arg.as_str().expect("a word");
        match arg.strip_prefix("--listen=") {
            Some(_) => "--listen=127.0.0.1:0".to_owned(),
            None => ["/etc/sidetrack-tls", "/etc/sidetrack"].iter().fold(
                arg.to_owned(),
                |arg, mount| {
                    arg.replace(&format!("{mount}/"), &format!("{}/", dir.path().display()))
                },
            ),
        }
    });
    let log = dir.path().join("log");
    let mut command = Command::new(program().expect("the program"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stderr(fs::File::create(&log).expect("a log"));
    let mut child = die_with_parent(&mut command).spawn().expect("a webhook");
    let start = Instant::now();
    let text = loop {
        let text = fs::read_to_string(&log).expect("the log");
        let ended = child.try_wait().expect("its state").is_some();
        if ended || text.contains("listening") || start.elapsed() > lab::agent::WAIT_TIMEOUT {
            break text;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    child.kill().expect("its end");
    child.wait().expect("its end");
    assert!(text.contains("listening"), "{text}");
}
