//! Sends events of pods to the API server, as Kubernetes Events.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{self, Event, EventType, Recorder},
};
use tokio::sync::mpsc;
use tracing::warn;

use sidetrack_policy::PodRef;
use sidetrack_reconcile::PodEvent;

/// Before an Event that could not be sent is sent again. Each further pause is twice as long, up to a minute.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Attempts for an Event that the API server answers with an error of its own.
const MAX_FAILURES: u32 = 5;
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
            self.last_notes.clear();
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
            if last.texts == TEXTS {
                return None;
            }
            last.texts += 1;
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
        let Some(recorder) = self.of(pod, pod_event.reason, &note) else {
            warn!(%pod, reason = pod_event.reason, "too many different Events, not sent: {note}");
            return None;
        };
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
            failures: 0,
            due: Instant::now(),
        })
    }
}

/// An Event on its way.
struct Outgoing {
    recorder: Recorder,
    event: Event,
    pod: ObjectReference,
    /// How many times it could not be sent.
    failures: u32,
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
        if let Err(error) = outgoing.recorder.publish(&outgoing.event, pod).await {
            let pod = format!("{}/{}", text(&pod.namespace), text(&pod.name));
            match pause_after(&error, outgoing.failures) {
                Some(pause) if delayed.len() < QUEUE => {
                    warn!(pod, reason, "cannot send an Event yet: {error}");
                    outgoing.failures += 1;
                    outgoing.due = Instant::now() + pause;
                    delayed.push(outgoing);
                }
                _ => warn!(pod, reason, "an Event is lost: {error}"),
            }
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn text(name: &Option<String>) -> &str {
    name.as_deref().unwrap_or_default()
}

/// How long after a failure an Event is sent again, if it is. A server that is away is waited for; one that answers has
/// [`MAX_FAILURES`] chances, and none if it refuses.
fn pause_after(error: &kube::Error, failures: u32) -> Option<Duration> {
    const TOO_MANY_REQUESTS: u16 = 429;
    if let kube::Error::Api(status) = error {
        let is_final = status.code < 500 && status.code != TOO_MANY_REQUESTS;
        if is_final || failures + 1 >= MAX_FAILURES {
            return None;
        }
    }
    Some(FIRST_PAUSE * 2_u32.pow(failures.min(5)))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::{FIRST_PAUSE, MAX_FAILURES, pause_after};

    fn answer(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("no", "No").with_code(code)))
    }

    #[test]
    fn pauses_grow_and_end_where_the_server_answers() {
        for code in [400, 403, 404, 422] {
            assert_eq!(pause_after(&answer(code), 0), None, "{code}");
        }
        for code in [429, 500, 503] {
            let pauses = (0..MAX_FAILURES).map_while(|it| pause_after(&answer(code), it));
            let wanted = (0..MAX_FAILURES - 1).map(|it| FIRST_PAUSE * 2_u32.pow(it));
            assert!(pauses.eq(wanted), "{code}");
        }
        let away = kube::Error::LinesCodecMaxLineLengthExceeded;
        assert_eq!(pause_after(&away, 0), Some(FIRST_PAUSE));
        assert_eq!(pause_after(&away, 1000), Some(FIRST_PAUSE * 32));
    }
}
