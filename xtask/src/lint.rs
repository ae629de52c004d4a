//! The order of crates and modules, unused names, formatting, lints and documentation, warnings denied, of everything but the kernel programs: the
//! compiler that builds those comes without clippy, so they are held to its own warnings.

mod names;
mod order;
mod source;

use std::path::Path;

use anyhow::Result;

use crate::{
    build,
    run::{cargo, must, root},
};

/// The fuzz targets, a workspace of their own.
const FUZZ: &str = "tests/fuzz/Cargo.toml";

/// Fails at the first complaint.
pub fn run() -> Result<()> {
    let files = source::files(&root(), Path::new(""))?;
    order::check(&files)?;
    names::check(&files)?;
    build::kernel_programs()?;
    must(cargo().args(["fmt", "--all", "--check"]))?;
    must(cargo().args(["fmt", "--check", "--manifest-path", FUZZ]))?;
    let clippy = ["clippy", "--locked", "--workspace", "--all-targets"];
    must(cargo().args(clippy).args(["--", "-D", "warnings"]))?;
    must(
        cargo()
            .args(["clippy", "--locked", "--bins", "--manifest-path", FUZZ])
            // The same dependencies were checked there just now.
            .arg("--target-dir")
            .arg(root().join("target"))
            .args(["--", "-D", "warnings"]),
    )?;
    // Private items as well: most of what these crates have is private, and links break there too.
    must(
        cargo()
            .env("RUSTDOCFLAGS", "-Dwarnings")
            .args(["doc", "--locked", "--workspace", "--no-deps"])
            .arg("--document-private-items"),
    )
}
