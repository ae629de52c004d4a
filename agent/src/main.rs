//! The `sidetrack` binary.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sidetrack::cli::main()
}
