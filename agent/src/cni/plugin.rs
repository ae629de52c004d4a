//! The plugin's commands.

use std::{
    os::fd::{AsFd as _, AsRawFd as _},
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    answer::{Error, VERSIONS},
    attach::{Answer, PATH, Question, Sandbox},
    config::Config,
    request::{Command, Pod, Variables},
};
use crate::{
    client::Client,
    netns::{Netns, NetnsError, inode_at},
};

/// How often an agent that does not answer is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a pod of an excluded namespace waits.
const EXCLUDED_PATIENCE: Duration = Duration::from_secs(1);
/// How long a question that waits for nothing may take.
const PROMPT: Duration = Duration::from_secs(5);
/// What the agent's answer may take longer than it was asked to wait.
const SLACK: Duration = Duration::from_secs(2);

/// Does what the runtime wants; the text is for stdout.
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

/// A pod starts. Its processes do only after this has succeeded.
fn add(variables: &Variables, config: &Config<'_>) -> Result<String, Error> {
    let result = config.previous()?.to_owned();
    let Some(place) = Place::of(variables)? else {
        return Ok(result);
    };
    let sandbox = match place.sandbox() {
        Ok(sandbox) => sandbox,
        Err(error) => return excused(&place.pod, config, error).map(|()| result),
    };
    let question = Question::Add {
        sandbox,
        patience: config.patience,
    };
    let name = &place.pod.name;
    let patience = patience(&place.pod, config);
    match ask_until(config, &question, patience) {
        Err(error) => excused(&place.pod, config, error).map(|()| result),
        Ok(Answer::Enrolled | Answer::NotTaken(_) | Answer::Done) => Ok(result),
        Ok(Answer::Refused(reason)) => Err(Error::refused(format!(
            "pod {name} cannot be intercepted, so it must not start: {reason}"
        ))),
        Ok(Answer::Later(reason)) => {
            let error = Error::later(format!("pod {name} must not start yet: {reason}"));
            excused(&place.pod, config, error).map(|()| result)
        }
    }
}

/// Whether a pod starts also without an agent: such are what a node needs to have one.
fn is_excluded(pod: &Pod, config: &Config<'_>) -> bool {
    config.exclude_namespaces.contains(&pod.name.namespace)
}

/// Whoever needs no agent need not wait for one that is not there.
fn patience(pod: &Pod, config: &Config<'_>) -> Duration {
    if is_excluded(pod, config) {
        config.patience.min(EXCLUDED_PATIENCE)
    } else {
        config.patience
    }
}

fn excused(pod: &Pod, config: &Config<'_>, error: Error) -> Result<(), Error> {
    if is_excluded(pod, config) {
        // The runtime keeps stderr in its log.
        eprintln!(
            "sidetrack: pod {} goes on without an answer of the agent, as its namespace is excluded: {}",
            pod.name,
            error.to_json()
        );
        return Ok(());
    }
    Err(error)
}

/// Some runtimes ask right after ADD (CRI-O), so whoever started without an agent passes without one.
fn check(variables: &Variables, config: &Config<'_>) -> Result<String, Error> {
    config.previous()?;
    let Some(place) = Place::of(variables)? else {
        return Ok(String::new());
    };
    let patience = PROMPT.min(patience(&place.pod, config));
    let answer = place
        .sandbox()
        .and_then(|sandbox| ask_until(config, &Question::Check { sandbox }, patience));
    let not = |reason| {
        let name = &place.pod.name;
        Error::refused(format!("pod {name} is not intercepted: {reason}"))
    };
    match answer {
        Ok(Answer::Enrolled | Answer::NotTaken(_) | Answer::Done) => Ok(()),
        Ok(Answer::Refused(reason)) => Err(not(reason)),
        Ok(Answer::Later(reason)) => excused(&place.pod, config, not(reason)),
        Err(error) => excused(&place.pod, config, error),
    }
    .map(|()| String::new())
}

/// A pod goes. An agent that does not hear of it notices by itself, so nothing may fail here: the
/// runtime would try for ever.
fn delete(variables: &Variables, config: &Config<'_>) -> Result<String, Error> {
    let question = Question::Delete {
        container: variables.container()?.to_owned(),
        inode: variables.netns().ok().as_deref().and_then(inode_at),
    };
    if let Err(error) = ask_once(config, &question, PROMPT) {
        eprintln!("sidetrack: {}", error.to_json());
    }
    Ok(String::new())
}

fn collect(config: &Config<'_>) -> Result<String, Error> {
    let Some(valid) = &config.valid else {
        return Err(Error::config(
            "GC needs cni.dev/valid-attachments".to_owned(),
        ));
    };
    let containers = valid.iter().map(|it| it.container.clone()).collect();
    ask_once(config, &Question::Collect { containers }, PROMPT)?;
    Ok(String::new())
}

/// Whether pods can be added. Runtimes tell kubelet that the node has no network where this fails, and
/// kubelet then starts nothing, the agent included: so the absence of the agent is no failure. ADD
/// waits for it, and knows who needs no agent.
fn status(config: &Config<'_>) -> Result<String, Error> {
    if let Err(error) = ask_once(config, &Question::Status, PROMPT) {
        eprintln!("sidetrack: {}", error.to_json());
    }
    Ok(String::new())
}

/// A pod and its network namespace.
struct Place {
    pod: Pod,
    container: String,
    path: PathBuf,
    /// Open as long as the agent is asked: that is how the agent finds it.
    netns: Netns,
}

impl Place {
    /// `None` for what is no pod, or is in the node's own network, where nothing is intercepted.
    fn of(variables: &Variables) -> Result<Option<Self>, Error> {
        let container = variables.container()?.to_owned();
        variables.interface()?;
        let path = variables.netns()?;
        let Some(pod) = variables.pod()? else {
            return Ok(None);
        };
        match Netns::open(&path) {
            Ok(netns) => Ok(Some(Self {
                pod,
                container,
                path,
                netns,
            })),
            Err(NetnsError::Host(_)) => Ok(None),
            Err(error) => {
                let path = path.display();
                let problem = match error {
                    NetnsError::Missing(_) => format!("is {path}, which does not exist"),
                    NetnsError::NotNetns(_) => format!("is {path}, which is no network namespace"),
                    error => format!("is of no use: {error}"),
                };
                Err(Error::variable("CNI_NETNS", &problem))
            }
        }
    }

    fn sandbox(&self) -> Result<Sandbox, Error> {
        let uid = self.pod.uid.clone().ok_or_else(|| {
            Error::variable(
                "CNI_ARGS",
                "has no K8S_POD_UID, which alone tells a pod from its predecessor of the same name; containerd has it since 1.6, CRI-O since 1.21",
            )
        })?;
        Ok(Sandbox {
            namespace: self.pod.name.namespace.clone(),
            name: self.pod.name.name.clone(),
            uid,
            container: self.container.clone(),
            netns: self.path.clone(),
            inode: self.netns.inode(),
            descriptor: self.netns.as_fd().as_raw_fd(),
        })
    }
}

/// Asks until there is an answer: an agent that is being replaced is away for a moment, and its
/// successor does not know its pods at once.
fn ask_until(
    config: &Config<'_>,
    question: &Question,
    patience: Duration,
) -> Result<Answer, Error> {
    let start = Instant::now();
    loop {
        let left = patience.saturating_sub(start.elapsed());
        let question = match question.clone() {
            Question::Add { sandbox, .. } => Question::Add {
                sandbox,
                patience: left,
            },
            other => other,
        };
        match ask_once(config, &question, left + SLACK) {
            Ok(Answer::Later(_)) | Err(_) if start.elapsed() + AGAIN < patience => {
                std::thread::sleep(AGAIN);
            }
            other => return other,
        }
    }
}

fn ask_once(config: &Config<'_>, question: &Question, patience: Duration) -> Result<Answer, Error> {
    let client = Client::new(&config.socket);
    let asked = async {
        match tokio::time::timeout(patience, client.post(PATH, question)).await {
            Ok(answer) => answer,
            Err(_) => Err(anyhow::anyhow!(
                "the agent on {} does not answer",
                config.socket.display()
            )),
        }
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io(format!("start: {error}")))?
        .block_on(asked)
        .map_err(|error| {
            Error::later(format!("{error:#}")).detailed(
                "pods start only when the agent of their node says that they are intercepted or need not be. Look at the sidetrack pod on this node; where sidetrack was uninstalled while the node was away, run `sidetrack-cni install-cni --remove` on it (in the directory of the CNI plugins)".to_owned(),
            )
        })
}
