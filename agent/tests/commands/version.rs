//! `sidetrack version`.

use std::{
    env::consts::ARCH,
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use sidetrack_common::LAYOUT_VERSION;
use sidetrack_datapath::kernel::objects::{ACCELERATE, CORE, DNS, FORWARD};

use crate::run::run;

/// The sum that coreutils compute.
fn sha256sum(content: &[u8]) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(content).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends").stdout;
    let text = String::from_utf8(output).expect("UTF-8");
    text.split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn it_shows_what_the_binary_is_made_of() {
    let shown = run(&["version", "-o", "json"]);
    let shown: Value = serde_json::from_str(shown.text()).expect("JSON");
    let flag = run(&["--version"]);
    let version = flag.text().trim().strip_prefix("sidetrack ");
    assert_eq!(shown["version"].as_str(), version);
    assert_eq!(shown["layout"], LAYOUT_VERSION);
    assert_eq!(shown["target"], format!("{ARCH}-unknown-linux-gnu"));
    let objects = [
        ("core", CORE),
        ("forward", FORWARD),
        ("accelerate", ACCELERATE),
        ("dns", DNS),
    ];
    for (index, (name, content)) in objects.into_iter().enumerate() {
        assert_eq!(
            shown["kernel_objects"][index],
            json!({"name": name, "bytes": content.len(), "sha256": sha256sum(content)})
        );
    }
}

#[test]
fn its_fields_are_those_of_the_interface() {
    let shown = run(&["version", "-o", "json"]);
    let shown: serde_json::Map<String, Value> =
        serde_json::from_str(shown.text()).expect("an object");
    let names: Vec<&str> = shown.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["commit", "kernel_objects", "layout", "target", "version"]
    );
    // Builds of cargo alone have no commit.
    if let Some(commit) = shown["commit"].as_str() {
        let hash = commit.strip_suffix("-dirty").unwrap_or(commit);
        assert!(
            hash.len() == 40 && hash.bytes().all(|it| it.is_ascii_hexdigit()),
            "{commit}"
        );
    }
}

#[test]
fn people_get_the_same() {
    let json = run(&["version", "-o", "json"]);
    let json: Value = serde_json::from_str(json.text()).expect("JSON");
    let text = run(&["version"]).text().to_owned();
    for object in json["kernel_objects"].as_array().expect("a list") {
        let sum = object["sha256"].as_str().expect("a text");
        assert!(text.contains(sum), "{text}");
    }
    assert!(
        text.contains(&format!("layout   {}", json["layout"])),
        "{text}"
    );
}
