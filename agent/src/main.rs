//! The `sidetrack` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    sidetrack::cli::main()
}
