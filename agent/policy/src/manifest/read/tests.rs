//! Files and their bounds.

use std::{fs, path::PathBuf};

use super::read_text;
use crate::manifest::{parse_pods, read_templates};

/// A file that is removed at the end of the test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sidetrack-{}-{name}", std::process::id()));
        fs::write(&path, text).expect("a file");
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// YAML may have 2 MiB, JSON 4 MiB; one byte more is refused with the cure.
#[test]
fn the_largest_files() {
    for (name, mib, cure) in [
        (
            "large.yaml",
            2,
            "it is larger than 2 MiB; split it, or write JSON",
        ),
        ("large.json", 4, "it is larger than 4 MiB; split it"),
        (
            "large",
            2,
            "it is larger than 2 MiB; split it, or write JSON",
        ),
    ] {
        let text = " ".repeat(mib << 20);
        let file = TempFile::new(name, &text);
        assert_eq!(
            read_text(&file.0).expect("a text").len(),
            text.len(),
            "{name}"
        );
        let file = TempFile::new(name, &(text + " "));
        let error = read_text(&file.0).unwrap_err();
        assert_eq!(error.to_string(), cure, "{name}");
    }
}

#[test]
fn only_regular_files_are_read() {
    let directory = read_text(&std::env::temp_dir()).unwrap_err();
    assert_eq!(directory.to_string(), "it is not a regular file");
    let endless = read_text("/dev/zero".as_ref()).unwrap_err();
    assert_eq!(endless.to_string(), "it is not a regular file");
    let missing = read_text("/nonexistent/a.yaml".as_ref()).unwrap_err();
    assert_eq!(missing.to_string(), "read the file");
}

#[test]
fn files_of_pods_and_of_workloads() {
    let text = "{\"kind\": \"Job\", \"metadata\": {\"name\": \"a\"}, \"spec\": {\"template\": {}}}";
    let file = TempFile::new("job.json", text);
    let (pods, problems) = parse_pods(&file.0, text).expect("JSON");
    assert_eq!((pods.len(), problems.len()), (0, 1));
    let (templates, problems) = read_templates(&file.0).expect("JSON");
    assert_eq!((templates.len(), problems.len()), (1, 0));
}

/// The message is the first line that is not empty.
#[test]
fn errors_of_yaml() {
    let error = super::parse_yaml::<serde_json::Value>("a: [", super::MAX_NODES)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("not valid YAML: "), "{error}");
    assert!(!error.contains("split the file"), "{error}");
    assert_eq!(super::first_line("\n  \nsecond\nthird"), "second");
    assert_eq!(super::first_line(""), "");
}

/// A few lines may stand for any number of values, and a value may be within any number of others.
#[test]
fn yaml_is_read_within_bounds() {
    let parse = |text: &str, most| super::parse_yaml::<serde_json::Value>(text, most);
    let refused = |text: &str, most| parse(text, most).unwrap_err().to_string();
    let error = refused("a: &a [1, 2]\nb: *a\n", 100);
    assert!(error.contains("YAML aliases (*NAME)"), "{error}");
    let bomb =
        "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b]\n";
    assert_eq!(refused(bomb, 100), error);
    assert_eq!(refused("a: &a {b: 1}\nc: {<<: *a}\n", 100), error);
    // An anchor by itself stands for nothing more.
    assert!(parse("a: &a [1, 2]\n", 100).is_ok());
    let list = |items: usize| format!("[{}]", "1,".repeat(items));
    assert!(parse(&list(99), 100).is_ok());
    let error = refused(&list(100), 100);
    assert!(error.contains("more YAML than is read at once"), "{error}");
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert!(parse(&deep(super::MAX_DEPTH), 1000).is_ok());
    let error = refused(&deep(super::MAX_DEPTH + 1), 1000);
    assert!(error.contains("more YAML than is read at once"), "{error}");
}

/// YAML's reader has the same bound by itself.
#[test]
fn the_most_documents() {
    for (is_json, document) in [(true, "0 "), (false, "---\n0\n")] {
        let split = |count: usize| super::split(is_json, &document.repeat(count));
        assert_eq!(split(1024).expect("documents").len(), 1024, "{document}");
        assert!(split(1025).is_err(), "{document}");
    }
    let error = super::split(true, &"0 ".repeat(1025)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "it has more than 1024 documents; split it"
    );
    // Empty documents are omitted.
    let objects = super::split(true, "null 1 null").expect("documents");
    assert_eq!(objects.len(), 1);
}
