//! Commands about one pod: they run in the agent of the pod's node, and their output and exit code are the
//! plugin's.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use sidetrack_policy::{PodRef, text::escaped_lines};

use crate::{
    agents::Agent,
    ask,
    cluster::{Cluster, answer},
    exec::{Running, within},
    flags::Connect,
    output,
    workload::Named,
};

/// A command and its pod.
#[derive(Debug, PartialEq, Eq)]
pub struct Pass {
    /// Such as `rules`.
    command: String,
    /// The pod.
    pod: Named,
    /// What follows the pod.
    words: Vec<String>,
}

impl Pass {
    /// Takes the command line apart. Flags that say where the cluster is may stand anywhere before `--`.
    pub fn read(command: &str, words: Vec<String>, connect: &mut Connect) -> Result<Self, String> {
        let mut rest = own_flags(words, connect)?.into_iter();
        let usage = format!("kubectl sidetrack {command} [NAMESPACE/]POD ...");
        let pod = match rest.next() {
            Some(flag) if flag == "-l" || flag == "--selector" => {
                Named::Labels(rest.next().ok_or("flag -l needs a value")?)
            }
            Some(flag) if flag.starts_with("-l") || flag.starts_with("--selector=") => {
                let value = flag.strip_prefix("--selector=");
                let value = value.unwrap_or_else(|| flag[2..].trim_start_matches('='));
                Named::Labels(value.to_owned())
            }
            Some(flag) if flag.starts_with('-') => {
                return Err(format!("the pod comes before {flag}: {usage}"));
            }
            Some(pod) => Named::Word(pod),
            None => return Err(format!("name a pod: {usage}")),
        };
        Ok(Self {
            command: command.to_owned(),
            pod,
            words: rest.collect(),
        })
    }

    /// Runs it.
    pub async fn run(self, cluster: &Cluster) -> Result<ExitCode> {
        let pod = self.pod.pod(cluster).await?;
        let node = node_of(cluster, &pod).await?;
        let agents = cluster.some_agents().await?;
        let Some(agent) = agents.get(&node) else {
            bail!("pod {pod} is on node {node}, which has no agent");
        };
        if let Some(down) = &agent.down {
            bail!("pod {pod} is on node {node}: {down}");
        }
        let name = pod.to_string();
        let mut words = vec![self.command.as_str(), &name];
        // It would run on in the agent's container when this process ends.
        let is_trace = self.command == "trace";
        words.extend(is_trace.then_some("--end-with-input"));
        words.extend(self.words.iter().map(String::as_str));
        let shown = match is_trace {
            true => follow(cluster, agent, &words).await,
            false => show(cluster, agent, &words).await,
        };
        match shown {
            Ok(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
            Err(error) if is_closed_pipe(&error) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(error.context(format!("node {node}"))),
        }
    }
}

/// Shows the output of a command as it comes. Returns its exit code.
async fn follow(cluster: &Cluster, agent: &Agent, words: &[&str]) -> Result<i32> {
    let started = Running::start(&cluster.client, agent, words);
    let running = within(cluster.connect.timeout, started).await?;
    let (out, errors) = (tokio::io::stdout(), tokio::io::stderr());
    running.copy(out, errors).await
}

/// Shows the output of a command that ends by itself. Returns its exit code.
async fn show(cluster: &Cluster, agent: &Agent, words: &[&str]) -> Result<i32> {
    let finished = ask::finished(cluster, agent, words).await?;
    let text = |bytes: &[u8]| escaped_lines(&String::from_utf8_lossy(bytes));
    // A reader that has gone away is no failure.
    let _ = write!(io::stderr(), "{}", text(&finished.stderr));
    if !finished.stdout.is_empty() {
        output::print(&text(&finished.stdout))?;
    }
    Ok(finished.code)
}

async fn node_of(cluster: &Cluster, pod: &PodRef) -> Result<String> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &pod.namespace);
    let read = || format!("get pod {pod}");
    let found = answer(api.get_opt(&pod.name)).await.with_context(read)?;
    let found = found.with_context(|| {
        format!("there is no pod {pod}: name it as NAMESPACE/POD, or its namespace with -n")
    })?;
    let spec = found.spec.with_context(read)?;
    spec.node_name
        .with_context(|| format!("pod {pod} has no node yet"))
}

/// Whether the reader of stdout has gone away, as `head` does.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
}

/// Removes the plugin's own flags from a command line and obeys them.
fn own_flags(words: Vec<String>, connect: &mut Connect) -> Result<Vec<String>, String> {
    let mut rest = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            rest.extend(words);
            break;
        }
        let (flag, attached) = match word.strip_prefix("-n") {
            Some(value) if !value.is_empty() => ("-n", Some(value.trim_start_matches('='))),
            _ => match word.split_once('=') {
                Some((flag, value)) => (flag, Some(value)),
                None => (word.as_str(), None),
            },
        };
        let set: fn(&mut Connect, String) = match flag {
            "-n" | "--namespace" => |connect, value| connect.namespace = Some(value),
            "--context" => |connect, value| connect.context = Some(value),
            "--kubeconfig" => |connect, value| connect.kubeconfig = Some(value.into()),
            "--as" => |connect, value| connect.as_user = Some(value),
            "--as-group" => |connect, value| connect.as_groups.push(value),
            "--agents-namespace" => |connect, value| connect.agents_namespace = value,
            _ => {
                rest.push(word);
                continue;
            }
        };
        let value = match attached {
            Some(value) => value.to_owned(),
            None => words
                .next()
                .ok_or_else(|| format!("flag {flag} needs a value"))?,
        };
        if value.is_empty() {
            return Err(format!("flag {flag} needs a value"));
        }
        set(connect, value);
    }
    if connect.as_user.is_none() && !connect.as_groups.is_empty() {
        return Err("flag --as-group needs --as".to_owned());
    }
    Ok(rest)
}

#[cfg(test)]
mod tests;
