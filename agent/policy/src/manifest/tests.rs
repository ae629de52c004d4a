//! Manifests as people write them.

use crate::{
    mesh::Mesh,
    select::{Enroll, Wanted, wanted},
};

#[test]
fn workloads_whatever_their_template_is() {
    let parse = |template: &str| {
        let text = format!("kind: Job\nmetadata: {{name: a}}\nspec: {{template: {template}}}\n");
        super::parse_templates(std::path::Path::new("a.yaml"), &text).unwrap()
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
        let message = match super::parse_pods(std::path::Path::new("a.yaml"), &text) {
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
    let parse = |name: &str, text: &str| super::parse_pods(std::path::Path::new(name), text);
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
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/pods-dir/example.yaml");
    let (documents, problems) = super::read_file(&path).unwrap();
    assert_eq!(problems, []);
    let wanted = wanted(&documents[0].pod, None, &Mesh::new(Enroll::Injected));
    assert!(matches!(wanted, Wanted::Enrolled(_)), "{wanted:?}");
}
