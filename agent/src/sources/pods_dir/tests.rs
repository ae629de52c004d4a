//! Files as people write them.

use std::fs;

use super::{Directory, Listing};

struct Lab {
    dir: tempfile::TempDir,
    directory: Directory,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::new(dir.path()).unwrap();
        Self { dir, directory }
    }

    fn write(&mut self, name: &str, text: &str) -> Listing {
        fs::write(self.dir.path().join(name), text).unwrap();
        self.directory.list().unwrap()
    }
}

fn names(listing: &Listing) -> Vec<&str> {
    listing
        .pods
        .iter()
        .map(|document| document.pod.metadata.name.as_deref().unwrap())
        .collect()
}

const A: &str = "kind: Pod\nmetadata: {name: a}\n";

#[test]
fn yaml_json_many_documents_and_lists() {
    let mut lab = Lab::new();
    lab.write(
        "a.yaml",
        &format!("{A}---\nkind: Pod\nmetadata: {{name: b}}\n---\n"),
    );
    lab.write(
        "c.json",
        r#"{"kind":"Pod","metadata":{"name":"c","namespace":"x"}}"#,
    );
    lab.write(".hidden.yaml", "{");
    lab.write("README.md", "{");
    let listing = lab.write(
        "d.yml",
        "kind: List\nitems: [{kind: Pod, metadata: {name: d}}, {metadata: {name: e}}]\n",
    );
    assert_eq!(names(&listing), ["a", "b", "c", "d", "e"]);
    assert_eq!(listing.problems, []);
    assert!(listing.complete);
    assert_eq!(
        listing.pods[0].pod.metadata.namespace.as_deref(),
        Some("default")
    );
    assert!(listing.pods[1].origin.ends_with("a.yaml, document 2"));
}

#[test]
fn a_broken_file_keeps_its_pods_and_others_go_on() {
    let mut lab = Lab::new();
    lab.write("a.yaml", A);
    let listing = lab.write("a.yaml", "kind: Pod\nmetadata: {name: [");
    assert_eq!(names(&listing), ["a"]);
    assert_eq!(listing.problems.len(), 1);
    assert!(listing.problems[0].message.contains("not valid YAML"));
    // It was read once, so what it does not name is known to be gone.
    assert!(listing.complete);
    let listing = lab.write("b.yaml", "kind: [");
    assert!(!listing.complete);
    fs::remove_file(lab.dir.path().join("a.yaml")).unwrap();
    assert_eq!(names(&lab.directory.list().unwrap()), [""; 0]);
}

#[test]
fn what_is_not_a_pod_is_named() {
    let mut lab = Lab::new();
    for (text, message) in [
        ("kind: Deployment\n", "it is a Deployment"),
        ("metadata: {name: a}\n", "no kind"),
        ("kind: Pod\nmetadata: {}\n", "no metadata.name"),
        (
            "kind: Pod\nmetadata: {name: a}\nspec: {containers: 3}\n",
            "not a valid Pod",
        ),
        ("- 1\n", "no kind"),
        ("kind: \"\\e[2J\"\n", "it is a \\u{1b}[2J;"),
        ("kind: Pod\nmetadata: {name: A}\n", "metadata.name is \"A\""),
        ("kind: Pod\nmetadata: {name: a/b}\n", "metadata.name is"),
        (
            "kind: Pod\nmetadata: {name: \"a\\0\"}\n",
            "metadata.name is",
        ),
        ("kind: Pod\nmetadata: {name: a.}\n", "metadata.name is"),
        (
            "kind: Pod\nmetadata: {name: a, namespace: ''}\n",
            "metadata.namespace is",
        ),
    ] {
        let listing = lab.write("a.yaml", text);
        assert!(
            listing.problems[0].message.contains(message),
            "{:?}",
            listing.problems
        );
    }
}

#[test]
fn files_that_are_too_large() {
    let mut lab = Lab::new();
    for (name, mib, cure) in [("a.json", 4, "split it"), ("b.yaml", 2, "write JSON")] {
        let blank = " ".repeat(mib << 20);
        assert_eq!(lab.write(name, &blank).problems, [], "{name}");
        let listing = lab.write(name, &(blank + " "));
        let message = &listing.problems[0].message;
        assert!(
            message.contains(&format!("larger than {mib} MiB")),
            "{message}"
        );
        assert!(message.contains(cure), "{message}");
        fs::remove_file(lab.dir.path().join(name)).unwrap();
    }
}
