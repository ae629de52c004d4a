//! `kubectl sidetrack bug-report`: one archive with what a maintainer would ask for.
//!
//! Invariant: what is not named here is omitted. No value of a variable but what the webhook has recorded, no token, no
//! Secret or ConfigMap, and of annotations only those that sidetrack reads.

mod archive;

use std::{collections::BTreeMap, fs::File, io::BufWriter, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;
use futures_util::{AsyncReadExt as _, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, LogParams},
};
use serde_json::{Value, json};
use sidetrack_base::runtime::exit_code;
use sidetrack_policy::{
    facts::PodFacts,
    mesh::Mesh,
    select::{NamespaceLabels, wanted_in},
    text::counted,
};

use self::archive::Archive;
use crate::{
    agents::{self, Agent},
    ask,
    cluster::{Cluster, WAIT_TIMEOUT, handler_of},
    denied::{Denied, plain},
    output,
    pods::enroll_of,
};

/// What each agent is asked.
const QUESTIONS: [(&str, &[&str]); 6] = [
    ("status.json", &["status", "-o", "json"]),
    ("pods.json", &["pods", "-o", "json"]),
    ("events.json", &["events", "-o", "json"]),
    ("cost.json", &["cost", "-o", "json"]),
    ("connections.json", &["connections", "-o", "json"]),
    // Takes longest.
    ("doctor.json", &["doctor", "-o", "json"]),
];
/// The end of an agent's log: lines, and bytes.
const LOG_LINES: i64 = 5_000;
const LOG_BYTES: i64 = 4 << 20;

const README: &str = "\
What `kubectl sidetrack bug-report` has collected:

nodes.json         name, kernel, system, runtime and kubelet version of each node
agents.json        the agents' pods: image, arguments, states and restarts of their containers
pods.json          pods with a sidecar or a label of sidetrack: name, node, phase, runtime class, label, the annotations
                   that sidetrack reads, arguments and image of istio-init, what follows for the pod
problems.txt       what could not be read
nodes/NODE/...     what `sidetrack status`, `pods`, `events`, `cost`, `connections` and `doctor` say there, and the end
                   of the agent's log (agent.log) and of its predecessor's in the same pod (agent-before.log)

Names, addresses and ports of pods and of what they connect to are in it. Values of variables (but those named
ISTIO_... that the webhook has recorded in an annotation), tokens, Secrets, ConfigMaps, other annotations and the
content of connections are not.
";

#[derive(Debug, Args)]
pub struct Options {
    /// The archive to write. A file that is there is not replaced
    #[arg(long, value_name = "FILE", default_value = "sidetrack-bug-report.tar")]
    file: PathBuf,
}

/// What was collected: directory, name and content of files.
#[derive(Default)]
struct Collected {
    files: Vec<(String, String, Vec<u8>)>,
    problems: Vec<String>,
}

impl Collected {
    fn add(&mut self, directory: &str, name: &str, content: impl Into<Vec<u8>>) {
        let file = (directory.to_owned(), name.to_owned(), content.into());
        self.files.push(file);
    }

    /// Adds what was read as JSON, or why it could not be.
    fn json(&mut self, name: &str, read: Result<Value>) -> Result<()> {
        match read {
            Ok(value) => self.add("", name, serde_json::to_string_pretty(&value)?),
            Err(error) => self.problems.push(format!("{name}: {error:#}")),
        }
        Ok(())
    }
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let path = &options.file;
    let create = || {
        File::create_new(path)
            .with_context(|| format!("create {}: pass another name to --file", path.display()))
    };
    // It is there only while it is written: an interrupt before leaves nothing behind.
    drop(create()?);
    std::fs::remove_file(path)?;
    let report = collect(cluster).await?;
    let file = create()?;
    let root = "sidetrack-bug-report";
    let mut archive = Archive::new(BufWriter::new(file));
    let problems = report.problems.join("\n");
    let own = [("README", README), ("problems.txt", &problems)];
    let written = || -> std::io::Result<()> {
        for (name, text) in own {
            archive.add(root, name, text.as_bytes())?;
        }
        for (directory, name, content) in &report.files {
            let directory = format!("{root}/{directory}");
            archive.add(directory.trim_end_matches('/'), name, content)?;
        }
        archive.finish().map(drop)
    };
    let written = written().inspect_err(|_| drop(std::fs::remove_file(path)));
    written.with_context(|| format!("write {}", path.display()))?;
    for problem in &report.problems {
        output::remark(problem);
    }
    let files = counted(report.files.len() as u64 + own.len() as u64, "file");
    output::print(&format!(
        "{}: {files}. Its README says what is in them. Look through it before you send it: it has names and addresses",
        path.display()
    ))?;
    Ok(exit_code(report.problems.is_empty()))
}

async fn collect(cluster: &Cluster) -> Result<Collected> {
    let (agents_pods, pods, labels, nodes) = tokio::join!(
        cluster.agents_pods(),
        cluster.pods_in(None, ListParams::default()),
        cluster.namespace_labels(None),
        cluster.all::<Node>(),
    );
    let agents_pods = agents_pods?;
    let agents = agents::by_node(&agents_pods);
    let mut report = Collected::default();
    report.json(
        "nodes.json",
        nodes.map(|nodes| nodes.iter().map(node).collect()),
    )?;
    report.json("agents.json", Ok(agents_pods.iter().map(agent).collect()))?;
    let handlers = match &pods {
        Ok(pods) => cluster.runtime_handlers(pods).await,
        Err(_) => Ok(BTreeMap::new()),
    };
    let handlers = handlers.unwrap_or_else(|error| {
        let problem = format!("handlers of runtime classes: {error:#}");
        report.problems.push(problem);
        BTreeMap::new()
    });
    let pods = pods.and_then(|pods| Ok((pods, labels?)));
    let pods = pods.map(|(pods, labels)| {
        pods.iter()
            .filter_map(|it| pod(it, &labels, &agents, &handlers))
            .collect()
    });
    report.json("pods.json", pods)?;
    let mut answers = stream::iter(agents.values().map(|agent| of_agent(cluster, agent)))
        .buffered(cluster.connect.parallel.into());
    while let Some(of_agent) = answers.next().await {
        let Collected { files, problems } = of_agent?;
        report.files.extend(files);
        report.problems.extend(problems);
    }
    Ok(report)
}

/// A log. The node may send more than it was asked for.
async fn read_log(api: &Api<Pod>, pod: &str, parameters: &LogParams) -> Result<String> {
    let log = api.log_stream(pod, parameters).await.map_err(plain)?;
    let mut bytes = Vec::new();
    log.take(LOG_BYTES as u64).read_to_end(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What an agent says, and its log.
///
/// # Errors
/// If no agent may be asked.
async fn of_agent(cluster: &Cluster, agent: &Agent) -> Result<Collected> {
    let mut report = Collected::default();
    // A name in the archive has no room for the longest.
    let short: String = agent.node.chars().take(120).collect();
    let directory = format!("nodes/{short}");
    let log = |previous| async move {
        let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &agent.namespace);
        let parameters = LogParams {
            container: Some("agent".to_owned()),
            tail_lines: Some(LOG_LINES),
            limit_bytes: Some(LOG_BYTES),
            previous,
            ..LogParams::default()
        };
        let read =
            tokio::time::timeout(WAIT_TIMEOUT, read_log(&api, &agent.pod, &parameters)).await;
        read.context("no answer")?
    };
    match log(false).await {
        Ok(text) => report.add(&directory, "agent.log", text),
        Err(error) => report
            .problems
            .push(format!("node {}: its agent's log: {error:#}", agent.node)),
    }
    // Of one that has never ended there is none.
    if let Ok(text) = log(true).await {
        report.add(&directory, "agent-before.log", text);
    }
    if let Some(down) = &agent.down {
        report.problems.push(format!("node {}: {down}", agent.node));
        return Ok(report);
    }
    for (at, (name, words)) in QUESTIONS.into_iter().enumerate() {
        match ask::finished(cluster, agent, words).await {
            // Of an agent that does not know the command, this is what it says.
            Ok(finished) if finished.stdout.is_empty() => {
                let complaint = finished.complaint();
                report
                    .problems
                    .push(format!("node {}: {name}: {complaint}", agent.node));
            }
            Ok(finished) => {
                // It has read the pinned maps and old files, since the agent does not answer.
                let remark = finished.remark();
                let remark = remark.map(|it| {
                    let said = it.trim_end_matches(':');
                    format!("node {}: {name}: {said}", agent.node)
                });
                report.problems.extend(remark);
                report.add(&directory, name, finished.stdout);
            }
            Err(error) if error.is::<Denied>() => return Err(error),
            Err(error) => {
                // One that hangs costs its time once.
                let names: Vec<&str> = QUESTIONS[at..].iter().map(|(name, _)| *name).collect();
                let problem = format!("node {}: {}: {error:#}", agent.node, names.join(", "));
                report.problems.push(problem);
                break;
            }
        }
    }
    Ok(report)
}

fn node(node: &Node) -> Value {
    let status = node.status.as_ref();
    let info = status.and_then(|status| status.node_info.as_ref());
    json!({
        "name": node.name_any(),
        "kernel": info.map(|info| &info.kernel_version),
        "architecture": info.map(|info| &info.architecture),
        "system": info.map(|info| &info.os_image),
        "runtime": info.map(|info| &info.container_runtime_version),
        "kubelet": info.map(|info| &info.kubelet_version),
    })
}

/// Variables may have values from Secrets, and annotations may have anything.
fn agent(pod: &Pod) -> Value {
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|spec| &spec.containers);
    let containers = containers.map(|container| {
        json!({
            "name": container.name, "image": container.image, "command": container.command, "args": container.args,
            "resources": container.resources,
        })
    });
    let status = pod.status.as_ref();
    let states = status.and_then(|status| status.container_statuses.as_ref());
    let states = states.into_iter().flatten().map(|status| {
        json!({
            "name": status.name, "imageID": status.image_id, "restarts": status.restart_count,
            "state": status.state, "last": status.last_state,
        })
    });
    json!({
        "name": pod.name_any(),
        "node": spec.and_then(|spec| spec.node_name.as_ref()),
        "phase": status.and_then(|status| status.phase.as_ref()),
        "containers": containers.collect::<Vec<_>>(),
        "states": states.collect::<Vec<_>>(),
    })
}

/// A pod that sidetrack has to do with.
fn pod(
    pod: &PodFacts,
    labels: &BTreeMap<String, String>,
    agents: &BTreeMap<String, Agent>,
    handlers: &BTreeMap<String, String>,
) -> Option<Value> {
    let meta = &pod.meta;
    let label = labels.get(meta.namespace.as_deref().unwrap_or_default());
    if pod.sidecar().is_none() && meta.labels.interception.is_none() {
        return None;
    }
    let mesh = Mesh::new(enroll_of(agents, pod.spec.node_name.as_deref()));
    let of_namespace = NamespaceLabels::interception(label.map(String::as_str));
    let wanted = wanted_in(pod, of_namespace, handler_of(pod, handlers), &mesh);
    let (then, reason) = wanted.named();
    let image = |container: Option<&sidetrack_policy::facts::ContainerFacts>| {
        container.and_then(|container| container.image.clone())
    };
    Some(json!({
        "namespace": meta.namespace, "name": meta.name,
        "node": pod.spec.node_name, "phase": pod.status.phase,
        "runtimeClass": pod.spec.runtime_class_name, "hostNetwork": pod.spec.host_network,
        "label": meta.labels.interception, "namespaceLabel": label,
        "annotations": meta.annotations.iter().collect::<BTreeMap<_, _>>(),
        "sidecar": image(pod.sidecar()),
        "istioInit": pod.istio_init().map(|init| json!({"image": init.image, "args": init.words})),
        "then": then, "reason": reason,
    }))
}
