//! A few seconds of the soak, with every test run.

use std::process::Command;

#[test]
fn a_few_seconds() {
    let output = Command::new(env!("CARGO_BIN_EXE_sidetrack-soak"))
        .args(["--minutes", "0.1"])
        .output()
        .expect("run the soak");
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{error}");
    let last = text.lines().last().unwrap_or_default();
    let passed = last.strip_suffix(" passed, 0 failed");
    let passed: u64 = passed.and_then(|it| it.parse().ok()).unwrap_or_default();
    assert!(passed > 2000, "{text}");
}
