use std::process::{Command, ExitCode};

use super::exit_code;

#[test]
fn the_exit_code_is_that_of_the_command() {
    let code_of = |line: &str| exit_code(Command::new("sh").args(["-c", line])).expect("sh runs");
    assert_eq!(code_of("exit 2"), ExitCode::from(2));
    assert_eq!(code_of("exit 0"), ExitCode::SUCCESS);
    assert_eq!(code_of("kill -TERM $$"), ExitCode::FAILURE);
}
