//! Forms of the output, and readers that go away.

use std::{
    fs,
    os::fd::OwnedFd,
    process::{Command, Stdio},
};

use serde_json::Value;
use sidetrack_policy::manifest::{MAX_NODES, parse_yaml};

use crate::run::{command, piped, workload};

/// The sending end of a pipe that no process reads.
fn closed() -> OwnedFd {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn readers_that_go_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("pod.yaml"), workload("Pod", "a", "")).expect("a manifest");
    let (manifest, socket, pages) = (path("pod.yaml"), path("none.sock"), path("man"));
    let places = ["--bpffs", "/nowhere", "--socket", &socket];
    let of_agent = |words: &[&str]| -> Vec<String> {
        [words, &places]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    let alone =
        |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    let explain = [
        "explain",
        "--manifest",
        &manifest,
        "outbound",
        "--dst",
        "10.0.0.1:80",
    ];
    for words in [
        alone(&["--help"]),
        alone(&["--version"]),
        alone(&["nonsense"]),
        alone(&["completions", "zsh"]),
        alone(&["man", &pages]),
        alone(&["rules", "--manifest", &manifest]),
        alone(&["rules", "--manifest", &manifest, "-o", "iptables"]),
        alone(&["rules", "--manifest", &manifest, "-o", "json"]),
        alone(&explain),
        of_agent(&["doctor"]),
        of_agent(&["pods"]),
        of_agent(&["status"]),
        of_agent(&["trace"]),
        of_agent(&["why", "a/b"]),
        of_agent(&["rules", "a/b"]),
        of_agent(&["explain", "a/b", "inbound", "--dst", "10.0.0.1:80"]),
        of_agent(&["cleanup", "--dry-run"]),
        of_agent(&["agent", "--pods-dir", "/nowhere"]),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let status = command(&words).stdout(closed()).stderr(closed()).status();
        let code = status.expect("it starts").code();
        // A panic has another code, and so has a signal.
        assert!(matches!(code, Some(0..=2)), "{words:?}: {code:?}");
    }
}

#[test]
fn yaml_is_what_json_is() {
    let pod = workload("Pod", "a", "");
    for words in [
        &["rules", "--manifest", "-"][..],
        &[
            "explain",
            "--manifest",
            "-",
            "inbound",
            "--dst",
            "10.0.0.1:80",
        ],
    ] {
        let form = |form: &str| piped(&[words, &["-o", form]].concat(), &pod);
        let yaml: Vec<Value> = parse_yaml(form("yaml").text(), MAX_NODES).expect("YAML");
        assert_eq!(yaml, [form("json").json()]);
        assert!(form("wide").text().len() > form("table").text().len());
    }
}

/// Runs a command whose output is a terminal of that width; what it printed.
fn on_terminal(columns: u16, words: &[&str]) -> Option<String> {
    let line = format!(
        "stty rows 40 cols {columns}; exec {} {}",
        env!("CARGO_BIN_EXE_sidetrack"),
        words.join(" ")
    );
    let mut script = Command::new("script");
    script
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null());
    let output = script.output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn tables_fit_the_terminal() {
    let doctor = ["doctor", "--socket", "/nowhere/a.sock"];
    let Some(shown) = on_terminal(120, &doctor) else {
        eprintln!("skipped: no `script`, which makes terminals");
        return;
    };
    let longest = |text: &str| {
        let table = text.split("\n\n").chain(text.split("\r\n\r\n"));
        let table = table.filter(|part| part.starts_with("FACILITY"));
        table
            .flat_map(str::lines)
            .map(|line| line.trim_end().len())
            .max()
    };
    let piped = piped(&doctor, "");
    assert!(longest(&piped.stdout) > Some(120), "{}", piped.stdout);
    let longest = longest(&shown).unwrap_or_else(|| panic!("no table: {shown}"));
    assert!(longest <= 120, "{longest}: {shown}");
    assert!(!shown.contains('\u{1b}'), "no color: {shown}");
}
