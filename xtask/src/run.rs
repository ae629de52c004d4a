//! Runs other programs.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};

/// The checkout. It is looked for at run time: one that was copied with its target directory has an xtask that was
/// compiled elsewhere. cargo says where xtask is; run by hand, it is below its checkout or called in it.
pub fn root() -> PathBuf {
    let cargo = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let starts = [
        cargo,
        std::env::current_exe().ok(),
        std::env::current_dir().ok(),
    ];
    let is_checkout = |dir: &&Path| dir.join("xtask/Cargo.toml").exists();
    let mut above = starts.iter().flatten().flat_map(|path| path.ancestors());
    let found = above.find(is_checkout);
    found
        .expect("xtask runs in a checkout of sidetrack")
        .to_owned()
}

/// Where setup puts tools.
pub fn tools() -> PathBuf {
    root().join("target/tools")
}

/// The cargo that runs xtask, in the checkout.
pub fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root());
    // `cargo run` describes xtask in these. The build script of ring depends on them: inherited, they
    // make cargo compile ring and all that uses it again, each time after a cargo command without xtask.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command that must succeed.
pub fn must(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("run {}", show(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", show(command));
    }
    Ok(())
}

/// Runs a command and returns its exit code; 1 for one that a signal ended.
pub fn exit_code(command: &mut Command) -> Result<ExitCode> {
    let status = command
        .status()
        .with_context(|| format!("run {}", show(command)))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// A command's stdout, trimmed; `None` if it cannot be run or fails.
pub fn answer(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether this process is root.
pub fn is_root() -> bool {
    answer(Command::new("id").arg("-u")).as_deref() == Some("0")
}

/// Fails with a clear sentence unless this is root.
pub fn require_root(what: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!(
        "`cargo xtask {what}` needs root: it loads programs into the kernel and makes network namespaces.\n\
         Run it as root, or: sudo -E env \"PATH=$PATH\" cargo xtask {what}"
    )
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests;
