//! The tools of the tests package: the demo, the comparison, the benchmark, pod starts. Each command
//! builds everything and hands its arguments to the tool, which declares them.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::Result;
use clap::Args;

use crate::{
    build::{self, Agent},
    run::{exit_code, require_root, root, tools},
    setup::Needs,
};

/// Arguments that a tool declares, not xtask.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Handed to the tool unchanged; `--help` lists what it takes
    #[arg(
        value_name = "OPTIONS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

impl Arguments {
    /// Whether one of them is given, alone or as `--flag=value`.
    pub fn has(&self, flag: &str) -> bool {
        self.words.iter().any(|word| {
            let word = word.to_string_lossy();
            word.split('=').next() == Some(flag)
        })
    }

    fn ask_for_help(&self) -> bool {
        self.has("--help") || self.has("-h")
    }
}

/// The demo: two pods with real sidecars. The agent is the tests' build: an optimized one would cost
/// another compilation of everything.
pub fn demo(arguments: &Arguments) -> Result<ExitCode> {
    let mut command = program("demo");
    command.arg("--tools").arg(tools().join("python"));
    if arguments.has("--down") && path("demo").exists() {
        require_root("demo")?;
        return exit_code(command.args(&arguments.words));
    }
    run("demo", Needs::Demo, Agent::Debug, command, arguments)
}

/// A tool that needs what the tests need, and root.
pub fn tests(name: &str, agent: Agent, arguments: &Arguments) -> Result<ExitCode> {
    run(name, Needs::Tests, agent, program(name), arguments)
}

/// The pictures of terminals in the docs, the demo among them.
pub fn pictures(arguments: &Arguments) -> Result<ExitCode> {
    let mut command = program("pictures");
    command.arg("--tools").arg(tools().join("python"));
    run("pictures", Needs::Tests, Agent::Debug, command, arguments)
}

/// The story on a real cluster. It works through the API server, so it needs no root.
pub fn e2e(arguments: &Arguments) -> Result<ExitCode> {
    let mut command = program("e2e");
    command.arg("--tools").arg(tools().join("python"));
    run_as_anyone(Needs::Tests, Agent::Debug, command, arguments)
}

/// A tool of the tests package, in the caller's directory so that relative paths mean what they say.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(path(name));
    // The name in its usage lines.
    command.arg0(format!("cargo xtask {name}"));
    command
}

/// The tool that declares the arguments of a command, if the command is one of these.
pub fn declared(name: &str) -> Option<Command> {
    path(name).exists().then(|| program(name))
}

fn path(name: &str) -> PathBuf {
    root().join(format!("target/debug/sidetrack-{name}"))
}

/// Builds everything, then runs a tool that needs root. Its help does not.
pub fn run(
    name: &str,
    needs: Needs,
    agent: Agent,
    command: Command,
    arguments: &Arguments,
) -> Result<ExitCode> {
    if !arguments.ask_for_help() {
        require_root(name)?;
    }
    run_as_anyone(needs, agent, command, arguments)
}

/// Builds everything, then runs a tool. Its help needs nothing of what the tool runs.
fn run_as_anyone(
    needs: Needs,
    agent: Agent,
    mut command: Command,
    arguments: &Arguments,
) -> Result<ExitCode> {
    if arguments.ask_for_help() {
        build::tests()?;
        return exit_code(command.arg("--help"));
    }
    build::for_running(needs, agent)?;
    agent.given_to(&mut command);
    exit_code(command.args(&arguments.words))
}

#[cfg(test)]
mod tests;
