//! Completion scripts and manual pages.

use std::{fs, process::Command};

use crate::run::run;

#[test]
fn bash_completes_commands() {
    let script = run(&["completions", "bash"]);
    let text = format!(
        "{}\nCOMP_WORDS=(sidetrack expl)\nCOMP_CWORD=1\n_sidetrack sidetrack expl sidetrack\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script.text(),
    );
    let output = Command::new("bash")
        .args(["--norc", "-c", &text])
        .output()
        .expect("bash");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "explain\n");
}

#[test]
fn a_page_for_each_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("share/man1");
    run(&["man", &pages.display().to_string()]).text();
    for command in [
        "",
        "-agent",
        "-status",
        "-explain",
        "-explain-outbound",
        "-install-cni",
    ] {
        let page = pages.join(format!("sidetrack{command}.1"));
        let text =
            fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(".TH sidetrack"), "{text}");
    }
    let explain = fs::read_to_string(pages.join("sidetrack-explain.1")).expect("the page");
    assert!(explain.contains("Examples:"), "{explain}");
    assert!(!pages.join("sidetrack-foreign-files.1").exists());
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    let ended = run(&["man", &file.display().to_string()]);
    assert!(ended.error(1).contains("create "), "{ended:?}");
}
