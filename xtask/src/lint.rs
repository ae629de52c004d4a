//! Everything that is checked without running the product, warnings denied: the order of crates and modules, names that
//! nothing uses, spelling, links, shell scripts, workflows, dependencies, formatting, lints and documentation.
//!
//! The Helm chart and the manifests are checked by `tests/deploy`, with Helm's engine and the objects' own types.

mod documented;
mod names;
mod order;
mod source;
pub mod values;
mod versions;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{
    build,
    crates::Program,
    run::{cargo, must, root, tools},
    setup,
};

/// The fuzz targets, a workspace of their own.
const FUZZ: &str = "tests/fuzz/Cargo.toml";

const MACHETE: Program = Program {
    name: "cargo-machete",
    version: "0.9.2",
    options: &["--debug", "--config", "profile.dev.debug=false"],
    estimate: "half a minute",
};

/// Without its default features it reads no index of a registry; none is needed for what is asked.
const DENY: Program = Program {
    name: "cargo-deny",
    version: "0.20.2",
    options: &[
        "--debug",
        "--config",
        "profile.dev.debug=false",
        "--no-default-features",
    ],
    estimate: "a minute",
};

/// Fails at the first complaint. What is quick comes first.
pub fn run() -> Result<()> {
    let files = source::files(&root(), Path::new(""))?;
    order::check(&files)?;
    names::check(&files)?;
    versions::check(FUZZ)?;
    values::check()?;
    setup::for_linting()?;
    let machete = MACHETE.install()?;
    let deny = DENY.install()?;
    spelling()?;
    pages()?;
    shell()?;
    workflows()?;
    must(
        Command::new(machete)
            .current_dir(root())
            .arg("--skip-target-dir"),
    )?;
    dependencies(&deny)?;
    build::kernel_programs()?;
    build::lint_kernel_programs()?;
    compiler()?;
    documented::check()
}

fn spelling() -> Result<()> {
    let typos = tools().join("lint/bin/typos");
    must(
        Command::new(typos)
            .current_dir(root())
            .args(["--format", "brief"]),
    )
}

/// Links and lines of the documents.
fn pages() -> Result<()> {
    let rumdl = tools().join("lint/bin/rumdl");
    must(
        Command::new(rumdl)
            .current_dir(root())
            .args(["check", "--no-cache", "."]),
    )
}

/// Every file that a shell runs.
fn shell() -> Result<()> {
    let scripts = [
        ".ci/run",
        "xtask/src/packages/check.sh",
        "xtask/src/vm/init.sh",
    ];
    must(Command::new("shellcheck").current_dir(root()).args(scripts))?;
    // Those of packages have no first line, or run where only a small shell is.
    let scripts = [
        "deb/postinst",
        "deb/postrm",
        "deb/prerm",
        "rpm/post.sh",
        "rpm/postun.sh",
        "rpm/preun.sh",
    ];
    let mut command = Command::new("shellcheck");
    command.current_dir(root().join("deploy/packages"));
    must(command.args(["--shell", "sh"]).args(scripts))
}

/// The workflows, and the commands in them.
fn workflows() -> Result<()> {
    let listing = fs::read_dir(root().join(".github/workflows"))?;
    let files = listing.flatten().map(|entry| entry.path());
    let actionlint = tools().join("lint/bin/actionlint");
    must(Command::new(actionlint).current_dir(root()).args(files))
}

/// Licenses, sources and forbidden crates; known vulnerabilities if their database is there, since it is not
/// downloaded for this.
fn dependencies(deny: &Path) -> Result<()> {
    let check = |options: &[&str], what: &[&str]| {
        let mut command = Command::new(deny);
        command.current_dir(root()).arg("--locked").args(options);
        must(command.args(["check", "--hide-inclusion-graph"]).args(what))
    };
    check(&[], &["licenses", "bans", "sources"])?;
    let home = std::env::home_dir().unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME").map_or(home.join(".cargo"), PathBuf::from);
    let databases = fs::read_dir(cargo_home.join("advisory-dbs"));
    if databases.is_ok_and(|mut it| it.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir())))
    {
        return check(&["--offline"], &["advisories"]);
    }
    eprintln!("lint: no database of advisories: `cargo deny fetch db` downloads it");
    Ok(())
}

/// What the compiler and its companions check.
fn compiler() -> Result<()> {
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
