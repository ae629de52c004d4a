//! Requests to the node's agent.

use std::time::{Duration, Instant};

use super::{answer::Error, config::Config};
use crate::client::{Client, NoAnswer};
use sidetrack_base::runtime::block_on;
use sidetrack_policy::{PodRef, gate::OPEN_GATE};
use sidetrack_reconcile::cni::{CniAnswer, PATH, Question};

/// Time between two requests to an agent that does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// How long a request may take that the agent answers at once.
pub(super) const PROMPT: Duration = Duration::from_secs(5);
/// How much longer the answer may take than the wait that was requested.
const SLACK: Duration = Duration::from_secs(2);

/// Repeats a request until it is answered. An agent that is being replaced is away for a moment, and its successor
/// does not know its pods at once.
pub(super) fn send_until_answered(
    config: &Config<'_>,
    question: &Question,
    patience: Duration,
) -> Result<CniAnswer, Error> {
    let start = Instant::now();
    loop {
        let remaining = patience.saturating_sub(start.elapsed());
        let question = match question.clone() {
            Question::Add { sandbox, .. } => Question::Add {
                sandbox,
                patience: remaining,
            },
            other => other,
        };
        match send(config, &question, remaining + SLACK) {
            Ok(CniAnswer::Later(_)) | Err(_) if start.elapsed() + RETRY_INTERVAL < patience => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Sends a request once.
pub(super) fn send(
    config: &Config<'_>,
    question: &Question,
    patience: Duration,
) -> Result<CniAnswer, Error> {
    let client = Client::new(&config.socket);
    let answer = async {
        match tokio::time::timeout(patience, client.post(PATH, question)).await {
            Ok(answer) => answer,
            Err(_) => Err(anyhow::anyhow!(
                "the agent on {} does not answer",
                config.socket.display()
            )),
        }
    };
    block_on(answer)
        .map_err(|error| Error::io(format!("start: {error}")))?
        .map_err(|error| no_answer(config, &error))
}

/// Kubelet shows it at the pod.
fn no_answer(config: &Config<'_>, error: &anyhow::Error) -> Error {
    let message = match error.downcast_ref() {
        Some(NoAnswer::Absent { socket, cause }) => {
            format!("no agent answers on {} ({cause})", socket.display())
        }
        _ => format!("{error:#}"),
    };
    let gate = config.install.as_ref().map(|install| {
        let PodRef { namespace, name } = &install.daemonset;
        // Without its node's name a plugin follows this value alone.
        let (node, place) = match install.node.as_deref() {
            Some(node) => (node, "there (add the nodes that it names already)"),
            None => ("'*'", "on every node"),
        };
        format!(
            " If it does not come up, `kubectl -n {namespace} annotate --overwrite daemonset {name} {OPEN_GATE}={node}` lets pods start {place} without interception."
        )
    });
    Error::later(message).detailed(format!(
        "a pod starts only after the agent of its node has intercepted it or found that it need not. Look at the sidetrack pod on this node.{} Where sidetrack was uninstalled while the node was away, run `{}` on it (in the directory of the CNI plugins)",
        gate.unwrap_or_default(),
        config.cleanup()
    ))
}

#[cfg(test)]
mod tests;
