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
        let directory = Directory::new(dir.path());
        Self { dir, directory }
    }

    fn write(&mut self, name: &str, text: &str) -> Listing {
        fs::write(self.dir.path().join(name), text).unwrap();
        self.list()
    }

    fn list(&mut self) -> Listing {
        self.directory.scan().unwrap();
        while self.directory.read_next() {}
        self.directory.drop_vanished();
        self.directory.listing()
    }
}

fn names(listing: &Listing) -> Vec<&str> {
    listing
        .pods
        .iter()
        .map(|document| document.pod.meta.name.as_deref().unwrap())
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
        listing.pods[0].pod.meta.namespace.as_deref(),
        Some("default")
    );
    assert!(listing.pods[1].origin.ends_with("a.yaml, document 2"));
}

#[test]
fn a_renamed_file_never_takes_its_pods_out() {
    let mut lab = Lab::new();
    lab.write("a.yaml", A);
    lab.write("b.yaml", "kind: Pod\nmetadata: {name: b}\n");
    let in_lab = |name: &str| lab.dir.path().join(name);
    for (from, to) in [("a.yaml", "x.yaml"), ("b.yaml", "y.yaml")] {
        fs::rename(in_lab(from), in_lab(to)).unwrap();
    }
    assert!(lab.directory.scan().unwrap());
    loop {
        let listing = lab.directory.listing();
        let mut pods = names(&listing);
        pods.sort_unstable();
        assert_eq!(pods, ["a", "b"]);
        if !lab.directory.read_next() {
            break;
        }
    }
    assert!(lab.directory.drop_vanished());
    assert!(!lab.directory.drop_vanished());
    fs::remove_file(in_lab("x.yaml")).unwrap();
    assert_eq!(names(&lab.list()), ["b"]);
}

#[test]
fn a_broken_file_keeps_its_pods_and_others_continue() {
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
    assert_eq!(names(&lab.list()), [""; 0]);
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

/// Has the times of change of what was written become final.
fn settle() {
    std::thread::sleep(super::files::STAMP_TTL * 2);
}

#[test]
fn only_changed_files_are_read_again() {
    let mut lab = Lab::new();
    lab.write("a.yaml", A);
    lab.write("b.yaml", "kind: Pod\nmetadata: {name: b}\n");
    settle();
    lab.list();
    assert!(!lab.directory.scan().unwrap(), "none is gone");
    assert!(!lab.directory.read_next(), "nothing has changed");
    // As long as before.
    fs::write(
        lab.dir.path().join("b.yaml"),
        "kind: Pod\nmetadata: {name: c}\n",
    )
    .unwrap();
    lab.directory.scan().unwrap();
    assert!(lab.directory.read_next());
    assert!(!lab.directory.read_next(), "one has changed");
    assert_eq!(names(&lab.directory.listing()), ["a", "c"]);
    fs::remove_file(lab.dir.path().join("a.yaml")).unwrap();
    assert!(lab.directory.scan().unwrap(), "one is gone");
}

/// A change that leaves size and time as they are, because it comes within the same tick of the clock.
#[test]
fn a_file_that_has_just_changed_is_read_again() {
    let mut lab = Lab::new();
    lab.write("a.yaml", A);
    lab.directory.scan().unwrap();
    assert!(lab.directory.read_next());
}

#[test]
fn small_files_are_read_first_and_large_ones_in_time() {
    let mut lab = Lab::new();
    let dir = lab.dir.path().to_owned();
    let large = "#".repeat(500_000) + "\n" + A;
    fs::write(dir.join("a.yaml"), &large).unwrap();
    lab.directory.scan().unwrap();
    let small = |name: &str| {
        let text = format!("kind: Pod\nmetadata: {{name: {name}}}\n");
        fs::write(dir.join(name).with_extension("yaml"), text).unwrap();
    };
    small("b");
    lab.directory.scan().unwrap();
    assert!(lab.directory.read_next());
    assert_eq!(names(&lab.directory.listing()), ["b"]);
    // The large file has waited longest.
    small("c");
    lab.directory.scan().unwrap();
    assert!(lab.directory.read_next());
    assert_eq!(names(&lab.directory.listing()), ["a", "b"]);
}

#[test]
fn the_most_pods_of_a_directory() {
    let mut lab = Lab::new();
    for file in 0..4 {
        let pods: String = (0..1024)
            .map(|pod| format!(r#"{{"kind":"Pod","metadata":{{"name":"p-{file}-{pod}"}}}} "#))
            .collect();
        assert_eq!(lab.write(&format!("{file}.json"), &pods).problems, []);
    }
    let listing = lab.write("more.yaml", A);
    assert_eq!(listing.pods.len(), super::MAX_PODS);
    let message = &listing.problems[0].message;
    assert!(message.contains("more than 4096 pods"), "{message}");
    assert!(!listing.complete);
    fs::remove_file(lab.dir.path().join("0.json")).unwrap();
    let listing = lab.list();
    assert_eq!(
        (listing.pods.len(), listing.problems),
        (3 * 1024 + 1, vec![])
    );
}

#[test]
fn the_most_bytes_of_a_directory() {
    let mut lab = Lab::new();
    let blank = " ".repeat(4 << 20);
    for file in 0..16 {
        fs::write(lab.dir.path().join(format!("{file:02}.json")), &blank).unwrap();
    }
    assert_eq!(lab.list().problems, []);
    let listing = lab.write("more.yaml", A);
    let message = &listing.problems[0].message;
    assert!(message.contains("more than 64 MiB"), "{message}");
    // Which of them has no room depends on which have just changed and are read again.
    assert_eq!(listing.problems.len(), 1);
}
