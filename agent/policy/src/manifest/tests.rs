//! Manifests as people write them.

use std::path::Path;

use serde_json::json;

use crate::{
    facts::MAX_POD_BYTES,
    mesh::Mesh,
    pod_ref::is_name,
    select::{Enroll, Wanted, wanted},
};

const RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";

#[test]
fn workloads_whatever_their_template_is() {
    let parse = |template: &str| {
        let text = format!("kind: Job\nmetadata: {{name: a}}\nspec: {{template: {template}}}\n");
        super::parse_templates(Path::new("a.yaml"), &text).unwrap()
    };
    for template in ["{}", "{metadata: null}", "{metadata: {name: b}}"] {
        let (documents, problems) = parse(template);
        assert_eq!(problems, [], "{template}");
        assert_eq!(documents[0].name().to_string(), "default/a", "{template}");
    }
    for template in ["3", "[]", "{metadata: web}", "{metadata: [a]}"] {
        let (documents, problems) = parse(template);
        assert!(documents.is_empty(), "{template}");
        assert!(
            problems[0].message.contains("not a valid Pod"),
            "{problems:?}"
        );
    }
}

#[test]
fn long_words_are_cut_in_messages() {
    let long = "x".repeat(1 << 20);
    for text in [
        format!("kind: {long}\n"),
        format!("{long}: 1\n{long}: 1\n"),
        format!("kind: Pod\nmetadata: {{name: {long}}}\n"),
        format!("kind: Pod\nmetadata: {{name: a}}\nspec: {{containers: {long}}}\n"),
    ] {
        let message = match super::parse_pods(Path::new("a.yaml"), &text) {
            Ok((_, problems)) => problems[0].message.clone(),
            Err(error) => error.to_string(),
        };
        assert!(message.len() < 500, "{message}");
    }
}

#[test]
fn as_many_pods_as_fit_into_a_file() {
    let pod = r#"{"kind":"Pod","metadata":{"name":"a"}}"#;
    let list = |len| {
        format!(
            r#"{{"kind":"List","items":[{}]}}"#,
            vec![pod; len].join(",")
        )
    };
    let parse = |name: &str, text: &str| super::parse_pods(Path::new(name), text);
    for name in ["a.json", "a.yaml"] {
        assert_eq!(parse(name, &list(1024)).unwrap().0.len(), 1024);
        let (documents, problems) = parse(name, &list(1025)).unwrap();
        assert!(documents.is_empty());
        assert!(
            problems[0].message.contains("more than 1024 pods"),
            "{problems:?}"
        );
    }
    for text in [
        list(512) + &list(513),
        pod.repeat(1025),
        "0 ".repeat(2 << 20),
    ] {
        let error = parse("a.json", &text).unwrap_err().to_string();
        assert!(error.contains("it has more than 1024"), "{error}");
    }
    let error = parse("a.yaml", &"0\n---\n".repeat(1025)).unwrap_err();
    assert!(error.to_string().contains("split the file"), "{error}");
}

#[test]
fn the_example_in_deploy_is_enrolled() {
    let path = Path::new("../../deploy/pods-dir/example.yaml");
    let (documents, problems) = super::parse_pods(path, &super::read_text(path).unwrap()).unwrap();
    assert_eq!(problems, []);
    let wanted = wanted(&documents[0].pod, None, &Mesh::new(Enroll::Injected));
    assert!(matches!(wanted, Wanted::Enrolled(_)), "{wanted:?}");
}

/// The name and value of a document's pods, or its problem.
fn parsed(text: &str) -> Result<Vec<String>, String> {
    let (documents, problems) =
        super::parse_pods(Path::new("a.yaml"), text).map_err(|error| error.to_string())?;
    match problems.into_iter().next() {
        Some(problem) => Err(problem.message),
        None => Ok(documents.iter().map(|pod| pod.name().to_string()).collect()),
    }
}

#[test]
fn kinds() {
    let pod = "{kind: Pod, metadata: {name: a, namespace: shop}}";
    assert_eq!(parsed(pod), Ok(vec!["shop/a".to_owned()]));
    // A name that the API server completes.
    let generated = "{kind: Pod, metadata: {generateName: web-, namespace: shop}}";
    assert_eq!(parsed(generated), Ok(vec!["shop/web".to_owned()]));
    let list = "{kind: List, items: [{metadata: {name: a}}, {kind: Pod, metadata: {name: b}}]}";
    assert_eq!(
        parsed(list),
        Ok(vec!["default/a".to_owned(), "default/b".to_owned()])
    );
    assert_eq!(parsed("kind: PodList"), Ok(vec![]));
    for (text, expected) in [
        (
            "kind: Service",
            "it is a Service; write the manifest of a Pod",
        ),
        ("a: b", "it has no kind"),
        (
            "{kind: List, items: [{kind: Service}]}",
            "the list has a Service",
        ),
        ("{kind: Pod}", "no metadata.name"),
        (
            "{kind: Pod, metadata: {name: a, labels: {b: 1}}}",
            "put numbers, true and false in quotes",
        ),
    ] {
        let problem = parsed(text).unwrap_err();
        assert!(problem.contains(expected), "{text}: {problem}");
    }
    let other = parsed("{kind: Pod, metadata: {name: a}, spec: {containers: 7}}").unwrap_err();
    assert!(!other.contains("in quotes"), "{other}");
}

#[test]
fn documents_are_numbered_if_there_are_several() {
    let problems = |text: &str| {
        let parsed = super::parse_pods(Path::new("a.yaml"), text).unwrap();
        let origins = parsed.1.into_iter().map(|problem| problem.origin);
        origins.collect::<Vec<_>>()
    };
    assert_eq!(problems("kind: Service"), ["a.yaml"]);
    let several = "kind: Service\n---\n{kind: Pod, metadata: {name: a}}\n---\nkind: Secret\n";
    assert_eq!(
        problems(several),
        ["a.yaml, document 1", "a.yaml, document 3"]
    );
    assert_eq!(problems("---\n---\nkind: Service\n---\n"), ["a.yaml"]);
}

/// Each bound of a name, by a name that is just inside and one that is just outside.
#[test]
fn names() {
    for (name, valid) in [
        ("a", true),
        ("0", true),
        ("web-0.a", true),
        ("", false),
        ("-a", false),
        ("a-", false),
        (".a", false),
        ("a.", false),
        ("A", false),
        ("a_b", false),
        ("a/b", false),
        ("\u{e9}", false),
    ] {
        assert_eq!(is_name(name, 253), valid, "{name:?}");
    }
    assert!(is_name(&"a".repeat(63), 63));
    assert!(!is_name(&"a".repeat(64), 63));
    let pod = |field: &str, value: &str| {
        let meta = [("name", "a"), ("namespace", "b"), ("uid", "c")];
        let meta = meta.map(|(name, usual)| match field == format!("metadata.{name}") {
            true => format!("{name}: {value}"),
            false => format!("{name}: {usual}"),
        });
        let account = match field == "spec.serviceAccountName" {
            true => value,
            false => "",
        };
        let meta = meta.join(", ");
        parsed(&format!(
            "{{kind: Pod, metadata: {{{meta}}}, spec: {{serviceAccountName: \"{account}\"}}}}"
        ))
    };
    for (field, longest) in [
        ("metadata.namespace", 63),
        ("metadata.name", 253),
        ("metadata.uid", 63),
        ("spec.serviceAccountName", 253),
    ] {
        let problem = pod(field, &"a".repeat(longest + 1)).unwrap_err();
        assert!(problem.starts_with(field), "{problem}");
        let problem = pod(field, &"a".repeat(longest)).err().unwrap_or_default();
        assert!(!problem.starts_with(field), "{problem}");
    }
}

#[test]
fn network_namespaces() {
    let netns = |annotations: &str| {
        let text = format!("{{kind: Pod, metadata: {{name: a, annotations: {{{annotations}}}}}}}");
        let parsed = super::parse_pods(Path::new("a.yaml"), &text).unwrap();
        parsed.0[0].netns.clone()
    };
    let path = super::NetnsRef::Path("/run/netns/a".into());
    assert_eq!(netns("sidetrack.dev/netns: /run/netns/a"), Ok(path));
    let relative = netns("sidetrack.dev/netns: a").unwrap_err();
    assert!(relative.contains("write an absolute path"), "{relative}");
    // A terminal would obey it.
    let hostile = netns("sidetrack.dev/netns: \"/run/netns/\\e[2J\\na\"").unwrap_err();
    assert!(hostile.contains(r"/run/netns/\u{1b}[2J\na"), "{hostile}");
    let missing = netns("").unwrap_err();
    assert!(missing.contains("is missing"), "{missing}");
}

#[test]
fn workloads_give_their_name_to_their_template() {
    let templates = |text: &str| {
        let parsed = super::parse_templates(Path::new("a.yaml"), text).unwrap();
        assert_eq!(parsed.1, []);
        let names = parsed.0.iter().map(|pod| pod.name().to_string());
        names.collect::<Vec<_>>()
    };
    let deployment = "{kind: Deployment, metadata: {name: web, namespace: shop}, spec: {template: {metadata: {name: x}}}}";
    assert_eq!(templates(deployment), ["shop/web"]);
    assert_eq!(templates("{kind: Pod, metadata: {name: a}}"), ["default/a"]);
    assert_eq!(templates("{kind: Service, metadata: {name: a}}"), [""; 0]);
}

#[test]
fn every_kind_of_workload() {
    let template = "{spec: {containers: []}}";
    let workload = |kind: &str, path: &[&str]| {
        let nested = path.iter().rev().fold(template.to_owned(), |inner, field| {
            format!("{{{field}: {inner}}}")
        });
        let fields = nested
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'));
        let fields = fields.expect("a mapping");
        format!("{{kind: {kind}, metadata: {{name: web}}, {fields}}}")
    };
    let plain = ["spec", "template"];
    let mut all = Vec::new();
    for (kind, path) in [
        ("Deployment", &plain[..]),
        ("DaemonSet", &plain),
        ("StatefulSet", &plain),
        ("ReplicaSet", &plain),
        ("Job", &plain),
        ("CronJob", &["spec", "jobTemplate", "spec", "template"]),
        ("PodTemplate", &["template"]),
    ] {
        let text = workload(kind, path);
        for text in [
            text.clone(),
            format!("{{kind: List, items: [{text}]}}"),
            format!("{{kind: {kind}List, items: [{text}]}}"),
        ] {
            let (documents, problems) = super::parse_templates(Path::new("a.yaml"), &text).unwrap();
            assert_eq!(problems, [], "{text}");
            assert_eq!(documents.len(), 1, "{text}");
            assert_eq!(documents[0].name().to_string(), "default/web", "{text}");
        }
        all.push(text);
    }
    let list = format!(
        "{{kind: List, items: [{}, {{kind: Service}}]}}",
        all.join(", ")
    );
    let (documents, problems) = super::parse_templates(Path::new("a.yaml"), &list).unwrap();
    assert_eq!((documents.len(), problems), (7, Vec::new()));
}

#[test]
fn piped_documents() {
    let read = |text: &str| super::read_templates_from(text.as_bytes());
    for text in [
        "kind: Pod\nmetadata: {name: a}\n",
        "{kind: Pod, metadata: {name: a}}",
        "\n {\"kind\": \"Pod\", \"metadata\": {\"name\": \"a\"}}",
    ] {
        let (documents, problems) = read(text).unwrap();
        assert_eq!(problems, [], "{text}");
        assert_eq!(documents[0].name().to_string(), "default/a", "{text}");
        assert_eq!(documents[0].origin, "stdin");
    }
    let error = read(&" ".repeat((2 << 20) + 1)).unwrap_err().to_string();
    assert!(error.contains("larger than 2 MiB"), "{error}");
    assert!(
        read(&format!("{{}}{}", " ".repeat(3 << 20))).is_ok(),
        "JSON may have 4 MiB"
    );
}

/// Wherever the pods of a list have their long values, also where only workloads have some.
#[test]
fn a_list_is_bounded_by_all_that_is_kept_of_it() {
    let long = "x".repeat(MAX_POD_BYTES);
    let template = json!({"metadata": {"annotations": {RANGES: long}}});
    let read = |more: usize| {
        let values = [
            ("/metadata/annotations", json!({RANGES: long})),
            ("/spec/nodeName", json!(long)),
            ("/status/phase", json!(long)),
            ("/template", template.clone()),
            ("/spec/template", template.clone()),
            ("/spec/jobTemplate", json!({"spec": {"template": template}})),
            ("/metadata/annotations", json!({RANGES: "x".repeat(more)})),
        ];
        let pods = values.map(|(pointer, value)| {
            let mut pod = json!({
                "metadata": {"name": "a", "annotations": null},
                "spec": {"nodeName": null, "template": null, "jobTemplate": null},
                "status": {"phase": null},
                "template": null,
            });
            *pod.pointer_mut(pointer).expect("a field") = value;
            pod
        });
        let text = json!({"kind": "List", "items": pods}).to_string();
        super::parse_pods(Path::new("a.json"), &text).expect("JSON")
    };
    let rest = 8 * MAX_POD_BYTES - 6 * long.len() - 7 * "a".len();
    let (documents, problems) = read(rest);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(documents.len(), 7);
    let (documents, problems) = read(rest + 1);
    assert_eq!(documents.len(), 0);
    assert!(
        problems[0].message.contains("more than 4 MiB"),
        "{problems:?}"
    );
}

#[test]
fn pods_of_a_list_are_among_the_templates() {
    let names = |object: serde_json::Value| {
        let text = object.to_string();
        let parsed = super::parse_templates(Path::new("a.json"), &text).expect("JSON");
        let names = parsed.0.into_iter().map(|it| it.pod.meta.name.clone());
        names.map(Option::unwrap_or_default).collect::<Vec<_>>()
    };
    let pod = json!({"metadata": {"name": "pod"}, "spec": {"containers": []}});
    assert_eq!(names(json!({"kind": "PodList", "items": [pod]})), ["pod"]);
    // A workload may have such a name, too.
    let workload = json!({
        "kind": "AllowList",
        "metadata": {"name": "own"},
        "spec": {"template": {"spec": {"containers": []}}},
    });
    assert_eq!(names(workload), ["own"]);
}

#[test]
fn what_is_not_json_is_named() {
    for text in ["{\"kind\":", "{\"kind\": \"\\ud800\"}", "{1: 2}"] {
        let error = super::parse_pods(Path::new("a.json"), text).expect_err("a problem");
        assert!(error.to_string().starts_with("not valid JSON: "), "{error}");
    }
}

/// Further items cost nothing but their reading.
#[test]
fn items_beyond_the_number_of_pods_are_not_kept() {
    let list = json!({"kind": "List", "items": vec![json!({}); 2 * super::MAX_PODS]});
    let list: super::object::Object = serde_json::from_value(list).expect("an object");
    let items = list.items.expect("items");
    assert_eq!(
        (items.count, items.all.len()),
        (2 * super::MAX_PODS, super::MAX_PODS)
    );
}
