//! Questions to every agent at once, with a deadline for each and a bound on how many are asked at a time.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use futures_util::{StreamExt as _, stream};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Value, json};
use sidetrack_policy::text::printable;

use crate::{
    agents::Agent,
    cluster::Cluster,
    denied::Denied,
    exec::{self, within},
    output,
    reader::NoReader,
};

/// Objects in an answer. A node has 4,096 pods at most that agents follow.
const MAX_OBJECTS: usize = 100_000;
/// Values in an answer.
const MAX_VALUES: usize = 1_000_000;

/// An answer of which a part is shown. Programs get all of it, with the fields of a newer agent.
#[derive(Clone, Debug)]
pub struct Whole<T> {
    /// What is shown.
    pub shown: T,
    /// The whole answer.
    pub value: Value,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if !value.is_object() {
            return Err(D::Error::custom("an object was expected"));
        }
        let shown = T::deserialize(&value).map_err(D::Error::custom)?;
        Ok(Self { shown, value })
    }
}

/// What each node answered, or why it did not.
pub type Answers<T> = BTreeMap<String, Result<T, String>>;

/// Agents without an answer, and why, by node. Where the command has read the pinned maps and files in the agent's place,
/// there is an answer of the node all the same.
#[derive(Debug)]
pub struct Silent {
    /// Why, by node.
    pub why: BTreeMap<String, String>,
    asked: usize,
}

impl Silent {
    /// Names the first of them on stderr. Fails if there are any.
    pub fn report(&self) -> bool {
        let title = format!("{} of {} agents do not answer", self.why.len(), self.asked);
        output::warn(&title, self.lines(), output::ALL_SILENT);
        self.why.is_empty()
    }

    /// A line for each.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.why.iter();
        lines
            .map(|(node, why)| format!("node {node}: {why}"))
            .collect()
    }
}

/// Answers for programs, each under this name, and why an agent has none of its own.
pub fn for_programs<T>(answers: &Answers<Whole<T>>, silent: &Silent, name: &str) -> Vec<Value> {
    let values = answers.iter().map(|(node, answer)| {
        let value = answer.as_ref().ok().map(|answer| &answer.value);
        json!({"node": node, (name): value, "problem": silent.why.get(node)})
    });
    values.collect()
}

/// What is shown of the nodes that have answered.
pub fn answered<T>(answers: &Answers<Whole<T>>) -> impl Iterator<Item = (&String, &T)> {
    let answers = answers.iter();
    answers.filter_map(|(node, answer)| Some((node, &answer.as_ref().ok()?.shown)))
}

/// Asks every agent by a command that answers JSON. The result has every node, with the answer or with
/// why there is none, and the agents that have not answered themselves.
///
/// # Errors
/// If none may be asked: that is one problem, and none of the nodes'.
pub async fn all<T: DeserializeOwned>(
    cluster: &Cluster,
    agents: &BTreeMap<String, Agent>,
    words: &[&str],
) -> Result<(Answers<T>, Silent)> {
    let answers = agents
        .values()
        .map(|agent| async move { (agent.node.clone(), asked(cluster, agent, words).await) });
    let mut answers: BTreeMap<String, Result<(T, Option<String>)>> = stream::iter(answers)
        .buffer_unordered(cluster.connect.parallel.into())
        .collect()
        .await;
    let is_denied = |answer: &Result<_>| answer.as_ref().is_err_and(|error| error.is::<Denied>());
    if answers.values().all(is_denied)
        && let Some((_, Err(denied))) = answers.pop_first()
    {
        return Err(denied);
    }
    let mut silent = Silent {
        why: BTreeMap::new(),
        asked: answers.len(),
    };
    let answers = answers.into_iter().map(|(node, answer)| {
        let (answer, why) = match answer {
            Ok((answer, remark)) => (Ok(answer), remark),
            Err(error) => {
                let why = format!("{error:#}");
                (Err(why.clone()), Some(why))
            }
        };
        silent.why.extend(why.map(|why| (node.clone(), why)));
        (node, answer)
    });
    let answers = answers.collect();
    Ok((answers, silent))
}

/// Asks one agent.
pub async fn one<T: DeserializeOwned>(
    cluster: &Cluster,
    agent: &Agent,
    words: &[&str],
) -> Result<T> {
    let (answer, _) = asked(cluster, agent, words).await?;
    Ok(answer)
}

/// Asks one agent. The remark is that of a command that has read the pinned maps, because the agent does not answer:
/// with JSON, commands write nothing else to stderr.
async fn asked<T: DeserializeOwned>(
    cluster: &Cluster,
    agent: &Agent,
    words: &[&str],
) -> Result<(T, Option<String>)> {
    if let Some(down) = &agent.down {
        return Err(anyhow!("{down}"));
    }
    let finished = finished(cluster, agent, words).await?;
    // What follows the remark's colon is the answer.
    let remark = finished.remark();
    let remark = remark.map(|it| it.trim_end_matches(':').to_owned());
    Ok((understood(&finished)?, remark))
}

/// A command about the pods of one namespace, or of all. Readers of one have to name it first.
pub fn of_namespace<'a>(words: &[&'a str], only: Option<&'a str>) -> Vec<&'a str> {
    let (command, rest) = words.split_at(1);
    let only = only.into_iter().flat_map(|name| ["-n", name]);
    let words = command.iter().copied().chain(only);
    words.chain(rest.iter().copied()).collect()
}

/// Asks one agent by a command, as a reader or in its container.
pub async fn finished(cluster: &Cluster, agent: &Agent, words: &[&str]) -> Result<exec::Finished> {
    let why = match cluster
        .tokens
        .ask(cluster.connect.timeout, agent, words)
        .await
    {
        Ok(finished) => return Ok(finished),
        Err(error) => error,
    };
    let asked = exec::collect(&cluster.client, agent, words);
    let asked = within(cluster.connect.timeout, asked).await;
    if asked.is_ok() && !why.is::<NoReader>() {
        cluster.tokens.prefer_exec();
    }
    asked.map_err(|error| match error.downcast::<Denied>() {
        Ok(Denied(denied)) => {
            let both = format!("{denied}; as a reader: {why:#}");
            // A user who might be answered next time is not one who may not ask.
            match why.is::<NoReader>() {
                true => Denied(both).into(),
                false => anyhow!(both),
            }
        }
        Err(error) => error,
    })
}

/// The answer of a command. One that found problems exits with 1 and answers all the same.
pub fn understood<T: DeserializeOwned>(finished: &exec::Finished) -> Result<T> {
    // As values an answer takes up to a hundred times its size in memory, and every node may send one.
    let objects = finished.stdout.iter().filter(|byte| **byte == b'{');
    let values = finished
        .stdout
        .iter()
        .filter(|byte| matches!(byte, b',' | b'['));
    if objects.count() > MAX_OBJECTS || values.count() > MAX_VALUES {
        bail!("its answer has more values than those of all pods that a node can have");
    }
    serde_json::from_slice(&finished.stdout).map_err(|wrong| not_understood(finished, &wrong))
}

/// What a program has answered instead of JSON.
fn not_understood(finished: &exec::Finished, wrong: &serde_json::Error) -> anyhow::Error {
    let is_silent = finished.stderr.iter().all(u8::is_ascii_whitespace);
    if finished.code == 0 || is_silent {
        let answer = String::from_utf8_lossy(&finished.stdout);
        return anyhow!(
            "its answer is not understood ({}); it exited with {} and wrote {:?}",
            printable(&wrong.to_string()),
            finished.code,
            printable(answer.trim())
        );
    }
    anyhow!("{}", finished.complaint())
}

#[cfg(test)]
mod tests;
