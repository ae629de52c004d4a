//! The agents of all nodes, as the live view asks them.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use sidetrack_live::{
    top::{Outlet, PodKey, Source, TopReport, Traced, Update},
    trace::AttendedLine,
};
use sidetrack_policy::text::escaped_lines;
use tokio::sync::{Semaphore, mpsc, watch};

use super::{Options, Wanted, words};
use crate::{agents::Agent, ask, cluster::Cluster, denied::Denied, exec, flags::Which};

/// How often the agents and the pods with the labels are listed again.
const RELIST: Duration = Duration::from_secs(10);
/// The pause after a node that does not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// How long a trace may be silent: it says every second that it runs.
const SILENCE: Duration = Duration::from_secs(5);

/// What was listed last.
struct State {
    agents: BTreeMap<String, Agent>,
    wanted: Wanted,
    /// Whether a node's answer had pods that are on other nodes by this list: they may have moved.
    needs_relist: bool,
}

/// The nodes that have an agent.
pub struct Nodes {
    cluster: Cluster,
    which: Which,
    words: [String; 6],
    state: Mutex<State>,
    /// How many are asked at a time.
    asking: Semaphore,
}

impl Nodes {
    /// Lists them.
    pub async fn find(cluster: Cluster, options: &Options) -> Result<Self> {
        let agents = cluster.some_agents().await?;
        let wanted = Wanted::of(&cluster, &options.which).await?;
        Ok(Self {
            asking: Semaphore::new(cluster.connect.parallel.into()),
            words: words(options.interval),
            state: Mutex::new(State {
                agents,
                wanted,
                needs_relist: false,
            }),
            which: options.which.clone(),
            cluster,
        })
    }

    fn agents(&self) -> BTreeMap<String, Agent> {
        let state = self.state.lock();
        state.agents.clone()
    }

    fn agent(&self, node: &str) -> Result<Agent> {
        let agent = self.agents().remove(node);
        agent.with_context(|| format!("node {node} has no agent any more"))
    }

    /// Lists again; whether there are other agents. Without an answer the old list holds. All pods of a cluster are many:
    /// they are listed again only if that may change what is shown.
    async fn relist(&self) -> bool {
        let is_due = {
            let state = self.state.lock();
            state.needs_relist || state.wanted.places.only_listed
        };
        let wanted = async {
            match is_due {
                true => Wanted::of(&self.cluster, &self.which).await.map(Some),
                false => Ok(None),
            }
        };
        let Ok((agents, wanted)) = tokio::try_join!(self.cluster.agents(), wanted) else {
            return false;
        };
        let mut state = self.state.lock();
        if let Some(wanted) = wanted {
            state.wanted = wanted;
            state.needs_relist = false;
        }
        let is_new = state.agents != agents;
        state.agents = agents;
        is_new
    }

    /// Asks one node again and again: what hangs there delays no other.
    ///
    /// # Errors
    /// If it may not be asked.
    async fn follow(&self, agent: &Agent, out: &mpsc::Sender<Update>) -> Result<()> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        loop {
            let answer: Result<TopReport> = {
                let _permit = self.asking.acquire().await?;
                ask::one(&self.cluster, agent, &words).await
            };
            if answer.as_ref().is_err_and(|error| error.is::<Denied>()) {
                return answer.map(drop);
            }
            let is_silent = answer.is_err();
            let mut report =
                answer.unwrap_or_else(|error| TopReport::silent(&agent.node, format!("{error:#}")));
            report.node.clone_from(&agent.node);
            {
                let mut state = self.state.lock();
                state.needs_relist |= state.wanted.filter(&mut report) > 0;
            }
            if out.send(Update::Report(report)).await.is_err() {
                return Ok(());
            }
            if is_silent {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

impl Source for Nodes {
    async fn feed(&self, out: mpsc::Sender<Update>) -> Result<()> {
        loop {
            let agents = self.agents();
            let names = agents.keys().cloned().collect();
            if out.send(Update::Nodes(names)).await.is_err() {
                return Ok(());
            }
            let mut all = pin!(try_join_all(
                agents.values().map(|agent| self.follow(agent, &out))
            ));
            let relisted = async {
                loop {
                    tokio::time::sleep(RELIST).await;
                    if self.relist().await {
                        return;
                    }
                }
            };
            let mut relisted = pin!(relisted);
            tokio::select! {
                all = &mut all, if !agents.is_empty() => return all.map(drop),
                () = &mut relisted => {}
            }
        }
    }

    async fn rules(&self, pod: PodKey) -> Result<String> {
        let agent = self.agent(&pod.node)?;
        let words = ["rules", &pod.name];
        let finished = ask::finished(&self.cluster, &agent, &words).await?;
        if finished.code != 0 {
            bail!("{}", finished.complaint());
        }
        Ok(escaped_lines(&String::from_utf8_lossy(&finished.stdout)))
    }

    async fn trace(&self, pod: PodKey, out: mpsc::Sender<Traced>) -> Result<()> {
        let agent = self.agent(&pod.node)?;
        let words = ["trace", "--attended", &pod.name];
        // It ends with its connection, when this is dropped.
        let (_running, end) = watch::channel(false);
        let silence = self.cluster.connect.timeout.max(SILENCE);
        let mut outlet = Outlet::new(out);
        let client = &self.cluster.client;
        let finished = exec::attend(client, &agent, &words, silence, end, |line| {
            match serde_json::from_str(line).context("its answer is not understood")? {
                AttendedLine::Alive(0) => outlet.began(),
                AttendedLine::Alive(_) => {}
                AttendedLine::Line(line) => outlet.line(line),
            }
            Ok(())
        });
        let finished = finished.await?;
        match finished.code {
            0 => Ok(()),
            _ => bail!("{}", finished.complaint()),
        }
    }
}
