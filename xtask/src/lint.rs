//! Formatting of everything; lints, warnings denied, of everything but the kernel programs: the
//! compiler that builds those comes without clippy, so they are held to its own warnings.

use anyhow::Result;

use crate::{
    build,
    run::{cargo, must},
};

/// Fails at the first complaint.
pub fn run() -> Result<()> {
    build::kernel_programs()?;
    must(cargo().args(["fmt", "--all", "--check"]))?;
    must(
        cargo()
            .args([
                "clippy",
                "--quiet",
                "--locked",
                "--workspace",
                "--all-targets",
            ])
            .args(["--", "-D", "warnings"]),
    )
}
