//! Formatting and lints, warnings denied; of the kernel programs too.

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
            .args(["clippy", "--quiet", "--locked", "--workspace", "--all-targets"])
            .args(["--", "-D", "warnings"]),
    )
}
