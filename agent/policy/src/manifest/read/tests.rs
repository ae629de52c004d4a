//! Files and their bounds.

use std::{fs, path::PathBuf};

use super::read_text;
use crate::manifest::{read_file, read_templates};

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
    let (pods, problems) = read_file(&file.0).expect("JSON");
    assert_eq!((pods.len(), problems.len()), (0, 1));
    let (templates, problems) = read_templates(&file.0).expect("JSON");
    assert_eq!((templates.len(), problems.len()), (1, 0));
}

/// The message is the first line that is not empty.
#[test]
fn errors_of_yaml() {
    let error = super::parse_yaml::<serde_json::Value>("a: [")
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("not valid YAML: "), "{error}");
    assert!(!error.contains("split the file"), "{error}");
    assert_eq!(super::first_line("\n  \nsecond\nthird"), "second");
    assert_eq!(super::first_line(""), "");
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
    // Empty documents are left out.
    let objects = super::split(true, "null 1 null").expect("documents");
    assert_eq!(objects.len(), 1);
}
