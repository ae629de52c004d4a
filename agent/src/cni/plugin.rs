//! The plugin's commands.

use std::time::Duration;

use serde_json::json;

use super::{
    agent,
    answer::{Error, VERSIONS},
    config::Config,
    pod_netns::PodNetns,
    request::{Command, Pod, Variables},
    uninstalled::{self, Presence},
};
use sidetrack_datapath::netns::inode_at;
use sidetrack_reconcile::cni::{CniAnswer, Question};

/// How long a pod of an excluded namespace waits.
const EXCLUDED_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the API server must say that sidetrack is uninstalled before a pod starts without an agent.
const OBSERVATION: Duration = Duration::from_secs(5);

/// Runs a command. The result is for stdout.
pub fn run(variables: &Variables, stdin: &[u8]) -> Result<String, Error> {
    let command = variables.command()?;
    if command == Command::Version {
        return Ok(json!({"cniVersion": "1.1.0", "supportedVersions": VERSIONS}).to_string());
    }
    let config = Config::parse(stdin)?;
    let done = match command {
        Command::Add => add(variables, &config),
        Command::Check => check(variables, &config),
        Command::Delete => delete(variables, &config),
        Command::Collect => collect(&config),
        Command::Status | Command::Version => status(&config),
    };
    done.map_err(|error| error.spoken(&config.version))
}

/// ADD: a pod starts. Its processes start only after this has succeeded.
fn add(variables: &Variables, config: &Config<'_>) -> Result<String, Error> {
    let result = config.previous()?.to_owned();
    let Some(pod) = PodNetns::of(variables)? else {
        return Ok(result);
    };
    let sandbox = match pod.sandbox() {
        Ok(sandbox) => sandbox,
        Err(error) => return unless_excluded(&pod.pod, config, error).map(|()| result),
    };
    let question = Question::Add {
        sandbox,
        patience: config.patience,
    };
    let name = &pod.pod.name;
    let patience = patience(&pod.pod, config);
    match agent::send_until_answered(config, &question, patience) {
        Err(error) => unless_open(&pod.pod, config, error, Some(OBSERVATION)).map(|()| result),
        Ok(CniAnswer::Enrolled | CniAnswer::Skipped(_) | CniAnswer::Done) => Ok(result),
        Ok(CniAnswer::Refused(reason)) => Err(Error::refused(format!(
            "pod {name} cannot be intercepted, so it must not start: {reason}"
        ))),
        Ok(CniAnswer::Later(reason)) => {
            let error = Error::later(format!("pod {name} must not start yet: {reason}"));
            unless_open(&pod.pod, config, error, None).map(|()| result)
        }
    }
}

/// Whether a pod starts also without an agent. The pods a node needs before it can run an agent are such.
fn is_excluded(pod: &Pod, config: &Config<'_>) -> bool {
    config.exclude_namespaces.contains(&pod.name.namespace)
}

/// How long a pod waits for the agent. Pods of excluded namespaces start without one, so they wait less.
fn patience(pod: &Pod, config: &Config<'_>) -> Duration {
    if is_excluded(pod, config) {
        config.patience.min(EXCLUDED_TIMEOUT)
    } else {
        config.patience
    }
}

/// An error, unless the pod starts also without an agent.
fn unless_excluded(pod: &Pod, config: &Config<'_>, error: Error) -> Result<(), Error> {
    if is_excluded(pod, config) {
        // The runtime keeps stderr in its log.
        eprintln!(
            "sidetrack: pod {} continues without an answer from the agent, because its namespace is excluded: {}",
            pod.name,
            error.to_json()
        );
        return Ok(());
    }
    Err(error)
}

/// What becomes of a pod that no agent has let start: an error, unless it starts nevertheless. `observation` is how long the
/// API server must say that sidetrack is uninstalled; `None` where an agent answers, so that it is not.
fn unless_open(
    pod: &Pod,
    config: &Config<'_>,
    error: Error,
    observation: Option<Duration>,
) -> Result<(), Error> {
    if !is_excluded(pod, config)
        && let Some(install) = &config.install
    {
        let name = &pod.name;
        match uninstalled::observe(install, observation.unwrap_or_default()) {
            Ok(Presence::Open(how)) => {
                eprintln!("sidetrack: pod {name} starts without interception: {how}");
                return Ok(());
            }
            Ok(Presence::Gone(how)) if observation.is_some() => {
                eprintln!(
                    "sidetrack: pod {name} starts without interception: no agent answers on this node, and {how}. The plugin's entry stays, and so do hooks of an agent that could not clean up: run `{}` on this node (in the directory of the CNI plugins)",
                    config.cleanup()
                );
                return Ok(());
            }
            Ok(Presence::Installed | Presence::Gone(_)) => {}
            Err(unknown) => eprintln!(
                "sidetrack: whether sidetrack is still installed is not known: {unknown:#}"
            ),
        }
    }
    unless_excluded(pod, config, error)
}

/// CHECK: is the pod intercepted? CRI-O runs it right after ADD, so a pod that started without an agent passes
/// without one.
fn check(variables: &Variables, config: &Config<'_>) -> Result<String, Error> {
    config.previous()?;
    let Some(pod) = PodNetns::of(variables)? else {
        return Ok(String::new());
    };
    let patience = agent::PROMPT.min(patience(&pod.pod, config));
    let answer = pod.sandbox().and_then(|sandbox| {
        agent::send_until_answered(config, &Question::Check { sandbox }, patience)
    });
    let not_intercepted = |reason| {
        let name = &pod.pod.name;
        Error::refused(format!("pod {name} is not intercepted: {reason}"))
    };
    match answer {
        Ok(CniAnswer::Enrolled | CniAnswer::Skipped(_) | CniAnswer::Done) => Ok(()),
        Ok(CniAnswer::Refused(reason)) => Err(not_intercepted(reason)),
        Ok(CniAnswer::Later(reason)) => {
            unless_open(&pod.pod, config, not_intercepted(reason), None)
        }
        Err(error) => unless_open(&pod.pod, config, error, Some(Duration::ZERO)),
    }
    .map(|()| String::new())
}

/// DEL: a pod ends. An agent that misses this notices by itself. So no error is returned: the runtime would
/// try forever.
fn delete(variables: &Variables, config: &Config<'_>) -> Result<String, Error> {
    let question = Question::Delete {
        container: variables.container()?.to_owned(),
        inode: variables.netns().ok().as_deref().and_then(inode_at),
    };
    if let Err(error) = agent::send(config, &question, agent::PROMPT) {
        eprintln!("sidetrack: {}", error.to_json());
    }
    Ok(String::new())
}

/// GC: the containers that still exist.
fn collect(config: &Config<'_>) -> Result<String, Error> {
    let Some(valid) = &config.valid else {
        return Err(Error::config(
            "GC needs cni.dev/valid-attachments".to_owned(),
        ));
    };
    let containers = valid.iter().map(|it| it.container.clone()).collect();
    agent::send(config, &Question::Collect { containers }, agent::PROMPT)?;
    Ok(String::new())
}

/// STATUS: can pods be added? If this fails, the runtime reports that the node has no network, and kubelet
/// starts no pod, not even the agent. So a missing agent is no failure here. ADD waits for it,
/// except for pods that need none.
fn status(config: &Config<'_>) -> Result<String, Error> {
    if let Err(error) = agent::send(config, &Question::Status, agent::PROMPT) {
        eprintln!("sidetrack: {}", error.to_json());
    }
    Ok(String::new())
}
