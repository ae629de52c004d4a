//! A cluster of some nodes, and the plugin.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use axum::http::StatusCode;
use lab::{
    apiserver::{
        ApiServer,
        exec::{Answer, End, Piece, Request},
    },
    plugin,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sidetrack::api::{Connections, NetnsStatus, PodState, PodStatus, Sidecar};
use tempfile::TempDir;

/// How an agent behaves.
#[derive(Clone, Debug)]
pub enum Agent {
    /// It answers.
    Answers {
        version: &'static str,
        pods: Vec<PodStatus>,
    },
    /// It says nothing.
    Hangs,
    /// The API server does not allow to ask.
    Refused(StatusCode),
    /// It writes something else.
    Writes(&'static str, i32),
    /// The connection breaks.
    Breaks,
    /// A program of this machine runs in its place: a shell's script, with the words as its arguments.
    Script(String),
    /// The runtime cannot start the command.
    CannotStart(&'static str),
}

/// Agents by their pods' names.
type Agents = Arc<Mutex<BTreeMap<String, Agent>>>;

/// A cluster.
pub struct Cluster {
    pub api: ApiServer,
    agents: Agents,
    asked: Arc<Mutex<Vec<Request>>>,
    nodes_with_agent: Mutex<BTreeSet<String>>,
    _dir: TempDir,
}

/// What the plugin did.
#[derive(Debug)]
pub struct Ended {
    pub out: String,
    pub errors: String,
    pub code: i32,
    pub took: Duration,
}

impl Cluster {
    /// One with these nodes, and no agent.
    pub fn new(nodes: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let api = ApiServer::start(dir.path())?;
        api.apply(lab::injected::namespace("default", None))?;
        for node in nodes {
            api.apply(json!({
                "kind": "Node",
                "metadata": {"name": node, "labels": {"kubernetes.io/os": "linux"}},
                "status": {"nodeInfo": node_info("6.1.0-30-amd64")},
            }))?;
        }
        let agents = Agents::default();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (known, heard) = (Arc::clone(&agents), Arc::clone(&asked));
        api.on_exec(move |request| {
            heard.lock().push(request.clone());
            let agents = known.lock();
            let agent = agents.get(&request.pod);
            agent.map_or(Answer::Hang, |agent| agent.answer(&request.words))
        });
        Ok(Self {
            api,
            agents,
            asked,
            nodes_with_agent: Mutex::default(),
            _dir: dir,
        })
    }

    /// Starts an agent on a node.
    pub fn agent(&self, node: &str, agent: Agent) -> Result<()> {
        self.agent_pod(node, json!({"running": {}}))?;
        let mut agents = self.agents.lock();
        agents.insert(format!("sidetrack-{node}"), agent);
        Ok(())
    }

    /// The pod of an agent, whose container is in a state.
    pub fn agent_pod(&self, node: &str, state: Value) -> Result<()> {
        self.api.apply(plugin::agents_pod(node, &state))?;
        let mut nodes = self.nodes_with_agent.lock();
        nodes.insert(node.to_owned());
        self.api.apply(plugin::daemonset(nodes.len()))
    }

    /// A pod with a sidecar. Its namespace is made if there is none.
    pub fn pod(&self, namespace: &str, name: &str, node: Option<&str>) -> Result<()> {
        if self.api.get("Namespace", "", namespace).is_err() {
            self.api.apply(lab::injected::namespace(namespace, None))?;
        }
        self.api.apply(json!({
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "app"}, {"name": "istio-proxy"}]},
            "status": {"phase": "Running"},
        }))
    }

    /// The commands that ran in agents so far.
    pub fn asked(&self) -> Vec<Request> {
        self.asked.lock().clone()
    }

    /// Runs the plugin to its end.
    pub fn run(&self, words: &[&str]) -> Result<Ended> {
        let start = Instant::now();
        let output = self.command(words)?.output()?;
        Ok(Ended {
            out: String::from_utf8(output.stdout)?,
            errors: String::from_utf8(output.stderr)?,
            code: output.status.code().context("the plugin was killed")?,
            took: start.elapsed(),
        })
    }

    /// The plugin.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        plugin::command(&self.api, words)
    }
}

impl Ended {
    /// Its output as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("{self:?}"))
    }
}

impl Agent {
    /// An agent of this version, with pods.
    pub fn with(pods: &[PodStatus]) -> Self {
        Self::Answers {
            version: "0.1.0",
            pods: pods.to_vec(),
        }
    }

    fn answer(&self, words: &[String]) -> Answer {
        let output = |text: &str, code| {
            let piece = Piece::Out(text.as_bytes().to_vec());
            Answer::Output(vec![piece], End::Code(code))
        };
        match self {
            Self::Hangs => Answer::Hang,
            Self::Refused(code) => Answer::Refused(*code, "no".to_owned()),
            Self::Writes(text, code) => output(text, *code),
            Self::Script(script) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", script, "sh"]).args(words);
                Answer::Stream(shell)
            }
            Self::Breaks => Answer::Cut("[{\"namespace\": ".to_owned()),
            Self::CannotStart(problem) => {
                Answer::Output(Vec::new(), End::NotStarted((*problem).to_owned()))
            }
            Self::Answers { version, pods } => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                match words.as_slice() {
                    ["sidetrack", "pods", "-o", "json"] => output(&json!(pods).to_string(), 0),
                    ["sidetrack", "pods", "-n", namespace, "-o", "json"] => {
                        let own = pods.iter().filter(|pod| pod.namespace == *namespace);
                        output(&json!(own.collect::<Vec<_>>()).to_string(), 0)
                    }
                    ["sidetrack", "status", "-o", "json"] => {
                        output(&status(version, pods).to_string(), 0)
                    }
                    _ => Answer::Output(
                        vec![Piece::Error(format!("{words:?}?\n").into_bytes())],
                        End::Code(2),
                    ),
                }
            }
        }
    }
}

fn status(version: &str, pods: &[PodStatus]) -> Value {
    let count = |state| pods.iter().filter(|pod| pod.state == state).count();
    let rejected = pods.iter().filter(|pod| pod.state == PodState::Rejected);
    let problems = rejected.map(|pod| {
        let reason = pod.reason.as_deref().unwrap_or_default();
        format!("pod {}/{}: {reason}", pod.namespace, pod.name)
    });
    json!({
        "kernel": "6.18.5",
        "agent": {"version": version, "pid": 1, "uptime_seconds": 5, "ready": true},
        "agent_state": "ready",
        "hooks": [],
        "pods_from": "agent",
        "pods": {
            "enrolled": count(PodState::Enrolled), "partial": count(PodState::Partial),
            "waiting": count(PodState::Waiting), "rejected": count(PodState::Rejected),
            "skipped": count(PodState::Skipped),
        },
        "notes": [], "problems": problems.collect::<Vec<_>>(),
    })
}

/// A pod as its agent describes it.
pub fn known(namespace: &str, name: &str, state: PodState) -> PodStatus {
    let enrolled = state == PodState::Enrolled;
    PodStatus {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: Some(format!("uid-{name}")),
        terminating: false,
        origin: "API server".to_owned(),
        state,
        reason: (!enrolled).then(|| format!("{name} has its reasons")),
        notes: Vec::new(),
        netns: enrolled.then(|| NetnsStatus {
            path: "/proc/4711/ns/net".to_owned(),
            inode: 4_026_532_000,
            cookie: 17,
        }),
        policy_id: enrolled.then_some(3),
        policy: None,
        ipv6: false,
        sidecar: enrolled.then_some(Sidecar::Up),
        listener: Some(enrolled),
        outbound_listener: Some(enrolled),
        dns_listener: None,
        refusals: Vec::new(),
        before_sidecar: false,
        connections: Connections {
            outbound_redirected: 12,
            ..Connections::default()
        },
    }
}

/// What kubelet says of a node.
pub fn node_info(kernel: &str) -> Value {
    json!({
        "kernelVersion": kernel, "operatingSystem": "linux", "architecture": "amd64", "bootID": "",
        "containerRuntimeVersion": "", "kubeProxyVersion": "", "kubeletVersion": "v1.33.1",
        "machineID": "", "osImage": "", "systemUUID": "",
    })
}
