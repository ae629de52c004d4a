//! The command line of the comparison.

use std::process::Command;

#[test]
fn a_wrong_profile_is_wrong_usage_and_the_right_names_are_listed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidetrack-compare"));
    let output = command.args(["--profile", "kube-prox"]).output();
    let output = output.expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for name in ["kube-proxy", "sbr", "default-deny", "all"] {
        assert!(text.contains(name), "{text}");
    }
}
