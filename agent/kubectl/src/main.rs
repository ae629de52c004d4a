//! `kubectl sidetrack`: the agents of a whole cluster, asked through the API server.
//!
//! Nothing here needs a kernel facility, root, or a way to the agents: what an agent is asked is a command, which readers ask
//! through the API server's proxy, and others run in its container, as `kubectl exec` does. `check` and `migrate` ask the API
//! server alone, and `test` asks pods of its own.
//!
//! Exit codes: 0 fine, 1 failed or something does not answer, 2 wrong usage. Commands for one pod exit with
//! the code of the command in the agent's container.

#![forbid(unsafe_code)]

mod agents;
mod ask;
mod bug_report;
mod check;
mod cluster;
mod connections;
mod connectivity;
mod cost;
mod denied;
mod doctor;
mod events;
mod exec;
mod flags;
mod kernel;
mod migrate;
mod output;
mod pass;
mod pods;
mod reader;
mod status;
mod top;
mod trace;
mod version;
mod watch;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};
use sidetrack_live::documents::{Completions, Man};

use self::{cluster::Cluster, flags::Connect, pass::Pass};

/// The name of the binary, which shells complete. kubectl finds plugins by it.
const BINARY: &str = "kubectl-sidetrack";

/// The sidetrack agents of a whole cluster.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-sidetrack",
    bin_name = "kubectl sidetrack",
    version,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show every node: its agent, version, pods and problems; and labeled pods that are not intercepted
    Status(status::Options),
    /// List the pods that the agents have, and labeled pods that none of them has
    Pods(pods::Options),
    /// Show a pod's policy as rules, with the connections each has decided: `sidetrack rules` on its node
    Rules(Words),
    /// Show how a connection of a pod is handled, and by which rule: `sidetrack explain` on its node
    Explain(Words),
    /// Show why connections of a pod were refused, and what to do: `sidetrack why` on its node
    Why(Words),
    /// Show who talks to whom by the open TCP connections of all nodes, or those of one pod
    Connections(Connections),
    /// List what happened lately on all nodes: policies, repairs, sidecars, first refusals, agents
    Events(events::Options),
    /// Show connections as they are decided, of all nodes at once, or of one pod
    Trace(Trace),
    /// Show the pods of all nodes live: sidecars, connections a second, refusals
    Top(top::Options),
    /// Show what sidetrack takes of each node: memory of its maps and its agent, processor time
    Cost(cost::Options),
    /// Collect what a maintainer would ask for in one archive. It has no Secrets and no values of variables, except
    /// what the webhook has recorded of istio-init
    BugReport(bug_report::Options),
    /// Check whether the kernels of the nodes can run sidetrack
    Doctor(doctor::Options),
    /// Show the version of the plugin and of the binary of each node
    Version(version::Options),
    /// Check whether a cluster is ready for sidetrack, before it is installed
    Check(check::Options),
    /// Show what would change for the pods of a namespace whose rules istio-init programs today
    Migrate(migrate::Options),
    /// Try connections between pods with sidecars, in a namespace that is created for it and deleted
    Test(connectivity::Options),
    /// Print a shell's completion script
    Completions(Completions),
    /// Write manual pages, one for each command
    Man(Man),
}

/// What follows the command.
#[derive(Debug, clap::Args)]
struct Words {
    /// The pod, or what it belongs to, such as deploy/web, or -l LABELS; then what `sidetrack` takes after it
    #[arg(
        value_name = "[NAMESPACE/]POD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<String>,
}

/// A trace.
#[derive(Debug, clap::Args)]
struct Trace {
    #[command(flatten)]
    options: trace::Options,
    /// Only this pod, which the agent of its node traces; then what `sidetrack trace` takes after it
    #[arg(
        value_name = "[NAMESPACE/]POD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<String>,
}

/// Connections.
#[derive(Debug, clap::Args)]
struct Connections {
    #[command(flatten)]
    options: connections::Options,
    /// Only this pod, whose connections the agent of its node lists one by one; then what `sidetrack connections` takes
    /// after it
    #[arg(
        value_name = "[NAMESPACE/]POD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli).await {
        Ok(code) => code,
        Err(error) => {
            output::remark(format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

impl Command {
    /// Its name, if a namespace of pods would mean nothing to it.
    const fn without_namespace(&self) -> Option<&'static str> {
        match self {
            Self::Status(_) => Some("status"),
            Self::Cost(_) => Some("cost"),
            Self::BugReport(_) => Some("bug-report"),
            Self::Doctor(_) => Some("doctor"),
            Self::Version(_) => Some("version"),
            Self::Check(_) => Some("check"),
            Self::Migrate(_) => Some("migrate"),
            Self::Test(_) => Some("test"),
            _ => None,
        }
    }
}

async fn run(mut cli: Cli) -> Result<ExitCode> {
    if let (Some(command), Some(namespace)) =
        (cli.command.without_namespace(), &cli.connect.namespace)
    {
        return Ok(wrong_usage(&format!(
            "`{command}` does not ask for pods of one namespace: leave out --namespace {namespace}"
        )));
    }
    let connect = cli.connect.clone();
    let cluster = || Cluster::connect(&connect);
    let (command, words) = match cli.command {
        Command::Completions(options) => return options.run(Cli::command(), BINARY),
        Command::Man(options) => return options.run(Cli::command(), BINARY),
        Command::Status(options) => return status::run(&cluster().await?, &options).await,
        Command::Pods(options) => return pods::run(&cluster().await?, &options).await,
        Command::Cost(options) => return cost::run(cluster().await?, &options).await,
        Command::BugReport(options) => return bug_report::run(&cluster().await?, &options).await,
        Command::Doctor(options) => return doctor::run(&cluster().await?, &options).await,
        Command::Version(options) => return version::run(&cluster().await?, &options).await,
        Command::Check(options) => return check::run(&cluster().await?, &options).await,
        Command::Migrate(options) => return migrate::run(&cluster().await?, &options).await,
        Command::Events(options) => return events::run(&cluster().await?, &options).await,
        Command::Top(options) => return top::run(cluster().await?, &options).await,
        Command::Trace(Trace { options, words }) if words.is_empty() => {
            if let Some(problem) = options.contradiction() {
                return Ok(wrong_usage(&problem));
            }
            return trace::run(&cluster().await?, &options).await;
        }
        Command::Trace(Trace { options, words }) => match options.words() {
            Ok(flags) => ("trace".to_owned(), pod_first(words, flags)),
            Err(problem) => return Ok(wrong_usage(&problem)),
        },
        Command::Connections(Connections { options, words }) if words.is_empty() => {
            return connections::run(&cluster().await?, &options).await;
        }
        Command::Connections(Connections { options, words }) => match options.words() {
            Ok(flags) => ("connections".to_owned(), pod_first(words, flags)),
            Err(problem) => return Ok(wrong_usage(&problem)),
        },
        Command::Test(options) => return connectivity::run(&cluster().await?, &options).await,
        Command::Rules(Words { words }) => ("rules".to_owned(), words),
        Command::Explain(Words { words }) => ("explain".to_owned(), words),
        Command::Why(Words { words }) => ("why".to_owned(), words),
    };
    match Pass::read(&command, words, &mut cli.connect) {
        Ok(pass) => pass.run(&Cluster::connect(&cli.connect).await?).await,
        Err(problem) => Ok(wrong_usage(&problem)),
    }
}

/// The pod, then flags that stood before it, then what follows it.
fn pod_first(mut words: Vec<String>, flags: Vec<String>) -> Vec<String> {
    words.splice(1..1, flags);
    words
}

fn wrong_usage(problem: &str) -> ExitCode {
    output::remark(problem);
    ExitCode::from(2)
}
