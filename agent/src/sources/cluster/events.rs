//! Sends events of pods to the API server, as Kubernetes Events.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{self, Event, EventType, Recorder},
};
use sidetrack_base::runtime::sleep_until;
use tokio::{sync::mpsc, time::Instant};
use tracing::warn;

use super::client::whole;
use sidetrack_policy::PodRef;
use sidetrack_reconcile::PodEvent;

/// Before an Event that could not be sent is sent again. Each further pause is twice as long, up to a minute.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Attempts for an Event that the API server answers with an error of its own.
const MAX_ERRORS: u32 = 5;
/// Attempts while it is away, or does not answer in time: an hour.
const MAX_AWAY: u32 = 60;
/// Events that wait for their first attempt, and for another one. A node has far fewer pods; further ones are dropped.
const QUEUE: usize = 1024;

/// Sends events, one after the other. One that cannot be sent does not keep the others waiting.
#[derive(Clone, Debug)]
pub struct Reporter {
    queue: mpsc::Sender<PodEvent>,
}

impl Reporter {
    /// Starts to send.
    pub fn start(client: Client, node: &str) -> Self {
        let (queue, pod_events) = mpsc::channel(QUEUE);
        let reporter = events::Reporter {
            controller: "sidetrack.dev/agent".to_owned(),
            instance: Some(node.to_owned()),
        };
        let recorders = Recorders {
            client,
            reporter,
            last_notes: HashMap::new(),
        };
        tokio::spawn(send(recorders, pod_events));
        Self { queue }
    }

    /// Reports; never waits.
    pub fn report(&self, pod_event: PodEvent) {
        if let Err(error) = self.queue.try_send(pod_event) {
            warn!("an Event is lost: {error}");
        }
    }
}

/// Gives each text an Event of its own. A recorder counts further Events of the same reason in the first one,
/// which keeps its text.
struct Recorders {
    client: Client,
    reporter: events::Reporter,
    last_notes: HashMap<(PodRef, String), LastNote>,
}

/// The last note about a pod for one reason.
struct LastNote {
    note: String,
    recorder: Recorder,
    /// Different texts since then.
    texts: u32,
    since: Instant,
}

impl Recorders {
    /// The recorder for a text; `None` if the pod has had too many different ones: annotations can change
    /// without end.
    fn of(&mut self, pod: &PodRef, reason: &str, note: &str) -> Option<Recorder> {
        const TEXTS: u32 = 20;
        const PERIOD: Duration = Duration::from_secs(600);
        const PODS: usize = 4096;
        let key = (pod.clone(), reason.to_owned());
        if self.last_notes.len() >= PODS && !self.last_notes.contains_key(&key) {
            // Pods that come and go renew no allowance of those that have used theirs.
            let used = |it: &LastNote| (it.since.elapsed() <= PERIOD, it.texts, it.since);
            let least = self.last_notes.iter().min_by_key(|(_, it)| used(it));
            let least = least.map(|(key, _)| key.clone());
            least.map(|key| self.last_notes.remove(&key));
        }
        let new = || Recorder::new(self.client.clone(), self.reporter.clone());
        let last = self.last_notes.entry(key).or_insert_with(|| LastNote {
            note: note.to_owned(),
            recorder: new(),
            texts: 1,
            since: Instant::now(),
        });
        if last.note != note {
            if last.since.elapsed() > PERIOD {
                (last.texts, last.since) = (0, Instant::now());
            }
            last.texts = (last.texts + 1).min(TEXTS + 2);
            if last.texts == TEXTS + 1 {
                warn!(%pod, reason, "too many different Events; no others are sent for now");
            }
            if last.texts > TEXTS {
                return None;
            }
            note.clone_into(&mut last.note);
            last.recorder = new();
        }
        Some(last.recorder.clone())
    }

    /// Makes the Event; `None` if the pod has had too many.
    fn prepare(&mut self, pod_event: PodEvent) -> Option<Outgoing> {
        // The API allows a note 1 kB.
        const LONGEST: usize = 1000;
        let mut note = pod_event.note;
        if let Some((cut, _)) = note.char_indices().find(|(at, _)| *at >= LONGEST) {
            note.truncate(cut);
            note.push_str("...");
        }
        let pod = &pod_event.pod;
        let recorder = self.of(pod, pod_event.reason, &note)?;
        let event = Event {
            type_: if pod_event.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: pod_event.reason.to_owned(),
            note: Some(note),
            action: "Intercept".to_owned(),
            secondary: None,
        };
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod_event.pod.name.clone()),
            namespace: Some(pod_event.pod.namespace.clone()),
            uid: pod_event.uid,
            ..ObjectReference::default()
        };
        Some(Outgoing {
            recorder,
            event,
            pod,
            failures: Failures::default(),
            due: Instant::now(),
        })
    }
}

/// An Event on its way.
struct Outgoing {
    recorder: Recorder,
    event: Event,
    pod: ObjectReference,
    failures: Failures,
    /// When it is sent.
    due: Instant,
}

async fn send(mut recorders: Recorders, mut pod_events: mpsc::Receiver<PodEvent>) {
    let mut delayed: Vec<Outgoing> = Vec::new();
    loop {
        let next = (0..delayed.len()).min_by_key(|at| delayed[*at].due);
        let due = next.map(|at| delayed[at].due);
        let mut outgoing = tokio::select! {
            pod_event = pod_events.recv() => {
                let Some(pod_event) = pod_event else { return };
                let Some(outgoing) = recorders.prepare(pod_event) else { continue };
                outgoing
            }
            () = sleep_until(due) => match next {
                Some(at) => delayed.swap_remove(at),
                None => continue,
            }
        };
        let (pod, reason) = (&outgoing.pod, &outgoing.event.reason);
        if let Err(error) = whole(outgoing.recorder.publish(&outgoing.event, pod)).await {
            let pod = format!("{}/{}", text(&pod.namespace), text(&pod.name));
            match outgoing.failures.pause_after(&error) {
                Some(pause) if delayed.len() < QUEUE => {
                    warn!(pod, reason, "cannot send an Event yet: {error}");
                    outgoing.due = Instant::now() + pause;
                    delayed.push(outgoing);
                }
                _ => warn!(pod, reason, "an Event is lost: {error}"),
            }
        }
    }
}

fn text(name: &Option<String>) -> &str {
    name.as_deref().unwrap_or_default()
}

/// What became of the attempts to send an Event.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    /// The API server was away.
    away: u32,
    /// It answered with an error.
    errors: u32,
}

impl Failures {
    /// How long after a failure the Event is sent again, if it is. A server that is away is waited for; one that answers has
    /// [`MAX_ERRORS`] chances, and none if it refuses.
    fn pause_after(&mut self, error: &kube::Error) -> Option<Duration> {
        const TOO_MANY_REQUESTS: u16 = 429;
        let (count, most) = match error {
            kube::Error::Api(status) if status.code < 500 && status.code != TOO_MANY_REQUESTS => {
                return None;
            }
            kube::Error::Api(_) => (&mut self.errors, MAX_ERRORS),
            _ => (&mut self.away, MAX_AWAY),
        };
        *count += 1;
        (*count < most).then(|| FIRST_PAUSE * 2_u32.pow((*count - 1).min(5)))
    }
}

#[cfg(test)]
mod tests;
