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

/// Between attempts while the API server is away.
const PAUSE: Duration = Duration::from_secs(2);

/// Sends events, one after the other.
#[derive(Clone, Debug)]
pub struct Reporter {
    queue: mpsc::Sender<PodEvent>,
}

impl Reporter {
    /// Starts to send.
    pub fn start(client: Client, node: &str) -> Self {
        // A node has far fewer pods. While the API server is away, further events are dropped.
        const QUEUE: usize = 1024;
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
}

async fn send(mut recorders: Recorders, mut pod_events: mpsc::Receiver<PodEvent>) {
    // The API allows a note 1 kB.
    const LONGEST: usize = 1000;
    while let Some(pod_event) = pod_events.recv().await {
        let mut note = pod_event.note;
        if let Some((cut, _)) = note.char_indices().find(|(at, _)| *at >= LONGEST) {
            note.truncate(cut);
            note.push_str("...");
        }
        let pod = &pod_event.pod;
        let Some(recorder) = recorders.of(pod, pod_event.reason, &note) else {
            warn!(%pod, reason = pod_event.reason, "too many different Events, not sent: {note}");
            continue;
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
        while let Err(error) = recorder.publish(&event, &pod).await {
            warn!(pod = %pod_event.pod, reason = event.reason, "cannot send an Event: {error}");
            if is_final(&error) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether the API server has refused the Event. Otherwise it is away or busy.
fn is_final(error: &kube::Error) -> bool {
    const TOO_MANY_REQUESTS: u16 = 429;
    matches!(error, kube::Error::Api(status) if status.code < 500 && status.code != TOO_MANY_REQUESTS)
}
