//! Runs commands; a failure carries what they said.

use std::{
    ops::{Deref, DerefMut},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Output},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Runs a command line (split at spaces) to its end and returns its stdout.
pub fn run(line: &str) -> Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    run_words(&words)
}

/// Runs a command to its end and returns its stdout.
pub fn run_words(words: &[&str]) -> Result<String> {
    let output = output(words)?;
    if !output.status.success() {
        bail!(
            "`{}` failed ({}): {}",
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end, whether or not it succeeds.
pub fn output(words: &[&str]) -> Result<Output> {
    Command::new(words[0])
        .args(&words[1..])
        .output()
        .with_context(|| format!("run `{}`", words.join(" ")))
}

/// Makes a child end with the thread that starts it, however that ends.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: prctl is async-signal-safe and changes only the child.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    }
}

/// A process that is ended when it is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it. It ends with the thread that starts it at the latest.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = die_with_parent(command).spawn();
        let child = child.with_context(|| format!("start {:?}", command.get_program()))?;
        Ok(Self(child))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.id().cast_signed()), signal)?)
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = self.wait();
    }
}

/// A program of this checkout, beside the one that is running (or one directory up, for test binaries).
///
/// # Errors
/// If it is not built.
pub fn built(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find our own binary")?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.exists())
        .with_context(|| format!("no {name} near {}: run `cargo xtask test`", own.display()))
}
