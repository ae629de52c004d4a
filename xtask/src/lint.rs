//! Formatting of everything; lints, warnings denied, of everything but the kernel programs: the
//! compiler that builds those comes without clippy, so they are held to its own warnings.

use anyhow::Result;

use crate::{
    build,
    run::{cargo, must, root},
};

/// The fuzz targets, a workspace of their own.
const FUZZ: &str = "tests/fuzz/Cargo.toml";

/// Fails at the first complaint.
pub fn run() -> Result<()> {
    build::kernel_programs()?;
    must(cargo().args(["fmt", "--all", "--check"]))?;
    must(cargo().args(["fmt", "--check", "--manifest-path", FUZZ]))?;
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
    )?;
    must(
        cargo()
            .args(["clippy", "--quiet", "--locked", "--bins"])
            .args(["--manifest-path", FUZZ, "--target-dir"])
            // The same dependencies were checked there just now.
            .arg(root().join("target"))
            .args(["--", "-D", "warnings"]),
    )
}
