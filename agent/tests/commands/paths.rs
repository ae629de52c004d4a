//! Doctor checks the paths that an agent would get.

use std::fs;

use serde_json::Value;

use crate::run::command;

/// Doctor's check of a facility.
fn check(words: &[&str], facility: &str) -> (Value, Value) {
    let output = command(&["doctor", "-o", "json"])
        .args(words)
        .output()
        .expect("doctor");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.success(), report["ok"] == true, "{report}");
    let checks = report["checks"].as_array().expect("checks").clone();
    let found = checks
        .into_iter()
        .find(|check| check["facility"] == facility);
    (
        report.clone(),
        found.unwrap_or_else(|| panic!("{facility} in {report}")),
    )
}

#[test]
fn paths_that_the_agent_refuses() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("file"), "").expect("a file");
    let here = dir.path().display().to_string();
    for (words, facility, problem) in [
        (["--bpffs", &here], "bpf filesystem", "is not a bpffs"),
        (
            ["--cgroup", &here],
            "cgroup2",
            "not a directory in a cgroup2 mount",
        ),
        (
            ["--socket", &path("file")],
            "control socket",
            "is not a socket",
        ),
        (
            ["--socket", &path("file/a.sock")],
            "control socket",
            "Not a directory",
        ),
        (
            ["--socket", &path(&"a".repeat(200))],
            "control socket",
            "shorter than SUN_LEN",
        ),
    ] {
        let (report, check) = check(&words, facility);
        if check["ok"].is_null() {
            // Without root it is not known.
            continue;
        }
        assert_eq!(report["ok"], false, "{report}");
        assert!(
            check["problem"].to_string().contains(problem),
            "{words:?}: {check}"
        );
        let text = command(&["doctor"]).args(words).output().expect("doctor");
        let text = String::from_utf8(text.stdout).expect("UTF-8");
        assert!(
            text.contains(problem) && !text.contains("can run sidetrack."),
            "{text}"
        );
    }
    let (_, check) = check(&["--socket", &path("new/dir/a.sock")], "control socket");
    assert_eq!(check["problem"], Value::Null, "{check}");
    assert!(!dir.path().join("new").exists(), "doctor changes nothing");
}
