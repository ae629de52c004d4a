//! Sends events of pods to the API server, as Kubernetes Events.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{self, Event, EventType, Recorder},
};
use tokio::sync::mpsc;
use tracing::warn;

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
        tokio::spawn(send(Recorder::new(client, reporter), pod_events));
        Self { queue }
    }

    /// Reports; never waits.
    pub fn report(&self, pod_event: PodEvent) {
        if let Err(error) = self.queue.try_send(pod_event) {
            warn!("an Event is lost: {error}");
        }
    }
}

async fn send(recorder: Recorder, mut pod_events: mpsc::Receiver<PodEvent>) {
    // The API allows a note 1 kB.
    const LONGEST: usize = 1000;
    while let Some(pod_event) = pod_events.recv().await {
        let mut note = pod_event.note;
        if let Some((cut, _)) = note.char_indices().find(|(at, _)| *at >= LONGEST) {
            note.truncate(cut);
            note.push_str("...");
        }
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
