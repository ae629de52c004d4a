//! Tells people about their pods, as Kubernetes Events.

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

/// Sends happenings, one after the other.
#[derive(Clone, Debug)]
pub struct Reporter {
    queue: mpsc::Sender<PodEvent>,
}

impl Reporter {
    /// Starts to send.
    pub fn start(client: Client, node: &str) -> Self {
        // A node has far fewer pods; more than that while the API server is away is not kept.
        const QUEUE: usize = 1024;
        let (queue, happenings) = mpsc::channel(QUEUE);
        let reporter = events::Reporter {
            controller: "sidetrack.dev/agent".to_owned(),
            instance: Some(node.to_owned()),
        };
        tokio::spawn(send(Recorder::new(client, reporter), happenings));
        Self { queue }
    }

    /// Reports; never waits.
    pub fn report(&self, happening: PodEvent) {
        if let Err(error) = self.queue.try_send(happening) {
            warn!("an Event is lost: {error}");
        }
    }
}

async fn send(recorder: Recorder, mut happenings: mpsc::Receiver<PodEvent>) {
    // The API allows a note 1 kB.
    const LONGEST: usize = 1000;
    while let Some(happening) = happenings.recv().await {
        let mut note = happening.note;
        if let Some((cut, _)) = note.char_indices().find(|(at, _)| *at >= LONGEST) {
            note.truncate(cut);
            note.push_str("...");
        }
        let event = Event {
            type_: if happening.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: happening.reason.to_owned(),
            note: Some(note),
            action: "Intercept".to_owned(),
            secondary: None,
        };
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(happening.pod.name.clone()),
            namespace: Some(happening.pod.namespace.clone()),
            uid: happening.uid,
            ..ObjectReference::default()
        };
        while let Err(error) = recorder.publish(&event, &pod).await {
            warn!(pod = %happening.pod, reason = event.reason, "cannot send an Event: {error}");
            if is_final(&error) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether the API server has understood, and said no. Otherwise it is away, or busy.
fn is_final(error: &kube::Error) -> bool {
    const TOO_MANY_REQUESTS: u16 = 429;
    matches!(error, kube::Error::Api(status) if status.code < 500 && status.code != TOO_MANY_REQUESTS)
}
