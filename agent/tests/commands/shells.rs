//! Completion scripts and manual pages.

use std::{fs, process::Command};

use crate::run::run;

#[test]
fn bash_completes_commands_and_pods() {
    let script = run(&["completions", "bash"]);
    let dir = tempfile::tempdir().expect("a directory");
    // In place of the binary: the pods are those of an agent.
    let stand_in = dir.path().join("sidetrack");
    fs::write(
        &stand_in,
        "#!/bin/sh\n[ \"$1\" = __pods ] && echo shop/web-0 && echo bank/ledger\n",
    )
    .expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&stand_in, mode).expect("executable");
    let completed = |words: &[&str]| -> Vec<String> {
        let text = format!(
            "{}\nCOMP_WORDS=({} {})\nCOMP_CWORD={}\n_sidetrack_pods '{}' '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            script.text(),
            stand_in.display(),
            words
                .iter()
                .map(|word| format!("'{word}'"))
                .collect::<Vec<_>>()
                .join(" "),
            words.len(),
            stand_in.display(),
            words.last().unwrap_or(&""),
            words.iter().rev().nth(1).unwrap_or(&"sidetrack"),
        );
        let output = Command::new("bash")
            .args(["--norc", "-c", &text])
            .output()
            .expect("bash");
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        lines.lines().map(str::to_owned).collect()
    };
    assert_eq!(completed(&["expl"]), ["explain"]);
    assert_eq!(completed(&["rules", "sh"]), ["shop/web-0"]);
    assert!(
        completed(&["explain", ""]).ends_with(&["shop/web-0".to_owned(), "bank/ledger".to_owned()])
    );
    assert_eq!(completed(&["status", "--wait", "b"]), ["bank/ledger"]);
    assert!(!completed(&["doctor", ""]).contains(&"shop/web-0".to_owned()));
    for shell in ["zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert!(script.text().contains("__pods"), "{shell}");
    }
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
    assert!(!pages.join("sidetrack-__pods.1").exists());
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    let ended = run(&["man", &file.display().to_string()]);
    assert!(ended.error(1).contains("create "), "{ended:?}");
}
