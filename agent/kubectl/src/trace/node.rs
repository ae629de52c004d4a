//! The trace of one node, again and again until the end.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sidetrack_live::trace::{AttendedLine, TraceLine};
use tokio::sync::{mpsc, watch};

use crate::{agents::Agent, cluster::Cluster, denied::Denied, exec};

/// The pause before a node is asked again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How long a trace may be silent at least: it says every second that it runs.
const SILENCE: Duration = Duration::from_secs(4);

/// What comes from nodes.
#[derive(Debug)]
pub enum Item {
    /// The agent of a node has agreed.
    Began { node: String },
    /// A line of a node's trace.
    Line { node: String, line: TraceLine },
    /// A node does not answer, or no more.
    Silent { node: String, why: String },
    /// No node may be asked.
    Denied(Denied),
}

/// What the traces of all nodes have in common.
#[derive(Clone)]
pub struct Traced {
    /// The cluster.
    pub cluster: Cluster,
    /// The command.
    pub words: Vec<String>,
    /// Where its lines go.
    pub out: mpsc::Sender<Item>,
    /// Becomes true in the end.
    pub end: watch::Receiver<bool>,
}

impl Traced {
    /// Traces until the end.
    pub async fn run(mut self, mut agent: Agent) {
        let node = agent.node.clone();
        loop {
            let result = self.once(&agent).await;
            if *self.end.borrow() {
                return;
            }
            let why = match result {
                Ok(()) => "its trace has ended".to_owned(),
                Err(error) => match error.downcast::<Denied>() {
                    Ok(denied) => {
                        let _ = self.out.send(Item::Denied(denied)).await;
                        return;
                    }
                    Err(error) => format!("{error:#}"),
                },
            };
            let node = node.clone();
            let silent = Item::Silent { node, why };
            if self.out.send(silent).await.is_err() {
                return;
            }
            let ended = tokio::time::timeout(RETRY_PAUSE, self.end.wait_for(|end| *end));
            if ended.await.is_ok() {
                return;
            }
            // A new agent has another pod.
            if let Ok(mut agents) = self.cluster.agents().await
                && let Some(new) = agents.remove(&agent.node)
            {
                agent = new;
            }
        }
    }

    /// Traces until the command ends.
    async fn once(&self, agent: &Agent) -> Result<()> {
        if let Some(down) = &agent.down {
            bail!("{down}");
        }
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let silence = self.cluster.connect.timeout.max(SILENCE);
        let (lines, mut rest) = mpsc::unbounded_channel();
        let (client, end) = (&self.cluster.client, self.end.clone());
        let command = exec::attend(client, agent, &words, silence, end, |line| {
            let line: AttendedLine =
                serde_json::from_str(line).context("its answer is not understood")?;
            let _ = lines.send(line);
            Ok(())
        });
        let mut command = std::pin::pin!(command);
        let finished = loop {
            tokio::select! {
                biased;
                Some(line) = rest.recv() => self.send(agent, line).await?,
                finished = &mut command => break finished?,
            }
        };
        while let Ok(line) = rest.try_recv() {
            self.send(agent, line).await?;
        }
        if finished.code != 0 {
            bail!("{}", finished.complaint());
        }
        Ok(())
    }

    async fn send(&self, agent: &Agent, line: AttendedLine) -> Result<()> {
        let node = agent.node.clone();
        let item = match line {
            AttendedLine::Alive(0) => Item::Began { node },
            AttendedLine::Alive(_) => return Ok(()),
            AttendedLine::Line(line) => Item::Line { node, line },
        };
        self.out.send(item).await.context("no task reads")
    }
}
