use std::process::Command;

use super::{Steps, describe};

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn crates_are_counted_while_a_step_runs() {
    let steps = Steps::new();
    let script = "echo '   Compiling a v1' >&2; echo '   Compiling b v1' >&2; exec sleep 60";
    let step = steps
        .start("x", "a minute", &mut shell(script))
        .expect("sh runs");
    let listed = || steps.running.lock().expect("never poisoned").clone();
    while listed() != [("x".to_owned(), 2)] {
        std::thread::yield_now();
    }
    assert_eq!(describe(&listed()[0]), "x, 2 crates so far");
    drop(step);
    assert_eq!(listed(), []);
}

#[test]
fn a_failure_shows_the_output() {
    let steps = Steps::new();
    let failed = steps.run("x", "at once", &mut shell("echo no space left >&2; exit 3"));
    let text = failed.expect_err("it fails").to_string();
    assert!(text.contains("no space left"), "{text}");
}
