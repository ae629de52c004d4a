//! The command line. One file per subcommand.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage; `validate`: 126 not intercepted. Results go to stdout,
//! logs and errors to stderr.

mod agent;
mod cleanup;
mod connections;
mod cost;
mod doctor;
mod events;
mod explain;
mod foreign_files;
mod install_cni;
mod interception_probe;
mod offline;
mod output;
mod pod_name;
mod pods;
mod probe;
mod rules;
mod status;
mod target;
mod top;
mod trace;
mod validate;
mod version;
mod why;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::cni;
use sidetrack_base::runtime::block_on;
use sidetrack_live::{
    documents::{Completions, Man},
    output::Format,
};

/// Sidecar traffic interception with eBPF socket hooks instead of iptables.
#[derive(Debug, Parser)]
#[command(name = "sidetrack", version = sidetrack_base::VERSION, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: enroll pods and keep their interception up to date
    Agent(Box<agent::Options>),
    /// Show what is loaded on this node, and the agent's state
    Status(status::Options),
    /// List the pods the agent has, one row each
    Pods(pods::Options),
    /// Show a pod's policy as rules, with the connections each has decided
    Rules(rules::Options),
    /// Show how a connection is handled, and by which rule
    Explain(explain::Options),
    /// Show pods live: sidecars, connections a second, refusals
    Top(top::Options),
    /// Stream connections with their verdicts
    Trace(trace::Options),
    /// Show why connections of a pod were refused, and what to do
    Why(why::Options),
    /// List a pod's open TCP connections, with the destinations that were dialed
    Connections(connections::Options),
    /// List what happened lately: policies, repairs, sidecars, first refusals, agents
    Events(events::Options),
    /// Show sidetrack's memory and CPU use on this node
    Cost(cost::Options),
    /// Check from inside a pod, as its sidecar's user, whether its connections are intercepted. Exits
    /// with 126 if not, as istio-validation does
    Validate(validate::Options),
    /// Run as a CNI plugin: a container runtime starts this (see install-cni)
    Cni,
    /// Put the CNI plugin behind the network's own, or remove it
    InstallCni(install_cni::Options),
    /// Ask the agent whether it is live or ready, through its socket. Exits with 1 if not
    Probe(probe::Options),
    /// Measure whether a node intercepts, as the two containers of a pod
    InterceptionProbe(interception_probe::Options),
    /// Check whether this node can run sidetrack
    Doctor(doctor::Options),
    /// Remove every hook, map and pin from this node
    Cleanup(cleanup::Options),
    /// Show what this binary was built from: version, commit, layout of the maps, kernel programs
    Version(version::Options),
    /// Print a shell's completion script
    #[command(after_help = "Examples:
  sidetrack completions bash > /usr/share/bash-completion/completions/sidetrack
  sidetrack completions zsh > /usr/share/zsh/site-functions/_sidetrack
  sidetrack completions fish > /usr/share/fish/vendor_completions.d/sidetrack.fish")]
    Completions(Completions),
    /// Write manual pages, one for each command
    #[command(after_help = "Examples:
  sidetrack man /usr/local/share/man/man1")]
    Man(Man),
    /// Read and write files for the agent that starts this
    #[command(name = sidetrack_datapath::foreign_files::COMMAND, hide = true)]
    ForeignFiles,
}

/// The variable with the bpffs of an agent in a container.
const BPFFS_VARIABLE: &str = "SIDETRACK_BPFFS";
/// Where nodes have their bpffs.
const BPFFS: &str = "/sys/fs/bpf";
/// The control socket's default path.
const SOCKET: &str = "/run/sidetrack/sidetrack.sock";

/// Over the flags that say where the agent is.
const PLACES: &str = "Where the agent is";

/// Where the agent keeps its state. All commands must get the same values as the agent.
#[derive(Clone, Debug, Args)]
struct Places {
    /// Mount point of the bpf filesystem
    #[arg(
        long,
        value_name = "PATH",
        env = BPFFS_VARIABLE,
        default_value = BPFFS,
        help_heading = PLACES,
        global = true
    )]
    bpffs: PathBuf,
    /// The agent's control socket
    #[arg(
        long,
        value_name = "PATH",
        default_value = SOCKET,
        help_heading = PLACES,
        global = true
    )]
    socket: PathBuf,
    /// Show nothing of pods of other namespaces. The agent sets it for readers of one
    #[arg(long, value_name = "NAMESPACE", hide = true, global = true)]
    only_namespace: Option<String>,
}

impl Places {
    /// Whether pods of a namespace may be shown.
    fn shows(&self, namespace: &str) -> bool {
        let only = self.only_namespace.as_ref();
        only.is_none_or(|only| only == namespace)
    }
}

/// Parses the arguments and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    // Runtimes start plugins by their file's name, with everything in the environment.
    if std::env::args_os().len() == 1 && std::env::var_os("CNI_COMMAND").is_some() {
        return cni::main();
    }
    let result = match Cli::parse().command {
        Command::Agent(options) => agent::run(*options),
        Command::Status(options) => blocking(status::run(options)),
        Command::Pods(options) => blocking(pods::run(options)),
        Command::Rules(options) => blocking(rules::run(options)),
        Command::Explain(options) => blocking(explain::run(options)),
        Command::Top(options) => blocking(top::run(options)),
        Command::Trace(options) => blocking(trace::run(options)),
        Command::Why(options) => blocking(why::run(options)),
        Command::Connections(options) => blocking(connections::run(options)),
        Command::Events(options) => blocking(events::run(options)),
        Command::Cost(options) => blocking(cost::run(options)),
        Command::Validate(options) => blocking(validate::run(options)),
        Command::Cni => Ok(cni::main()),
        Command::InstallCni(options) => install_cni::run(&options),
        Command::Probe(options) => blocking(probe::run(options)),
        Command::InterceptionProbe(options) => blocking(interception_probe::run(options)),
        Command::Doctor(options) => blocking(doctor::run(options)),
        Command::Cleanup(options) => cleanup::run(&options),
        Command::Version(options) => version::run(&options),
        Command::Completions(options) => options.run(Cli::command(), "sidetrack"),
        Command::Man(options) => options.run(Cli::command(), "sidetrack"),
        Command::ForeignFiles => foreign_files::run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::remark(format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs a command's future to its end.
fn blocking(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    block_on(command)?
}

/// Ends the process with a sentence about wrong usage, as clap does.
fn usage(sentence: &str) -> ! {
    clap::Error::raw(
        clap::error::ErrorKind::ArgumentConflict,
        format!("{sentence}\n"),
    )
    .exit()
}

#[cfg(test)]
mod tests;
