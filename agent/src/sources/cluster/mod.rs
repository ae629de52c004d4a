//! Pods from the API server: this node's pods, and the labels of namespaces.
//!
//! Invariants: nothing is listed before both have been read in full once; while the API server is
//! away the last known state stays listed; an outdated answer changes nothing.

mod events;
pub mod taint;
mod view;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, Pod},
};
use kube::{
    Api, Client, Config,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt as _,
        utils::Backoff,
        watcher::{self, Event, watcher},
    },
};
use tokio::time::Instant;
use tracing::{error, info};

pub use self::events::Reporter;
use self::view::View;
use sidetrack_policy::PodRef;
use sidetrack_reconcile::Listing;

/// One change of the API comes with others: wait this long for them.
const SETTLE: Duration = Duration::from_millis(10);
/// Longest silence of a connection. Bookmarks come once a minute; a connection whose other end has
/// vanished says nothing at all.
const SILENCE: Duration = Duration::from_secs(120);

type Events<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>;

/// The API server's objects that concern this node.
pub struct Cluster {
    client: Client,
    pods: Events<Pod>,
    namespaces: Events<PartialObjectMeta<Namespace>>,
    daemonset: Events<PartialObjectMeta<DaemonSet>>,
    uninstall: Uninstall,
    view: View,
    trouble: Trouble,
    changed: bool,
    /// When a change may be reported.
    settled: Option<Instant>,
}

/// Whether the agent is being uninstalled. What an agent leaves behind serves its successor; after the
/// deletion of its DaemonSet there is none.
#[derive(Debug, Default)]
struct Uninstall {
    decided: Arc<AtomicBool>,
    /// Whether it has existed.
    known: bool,
    /// Whether it is in the list that is being read.
    listed: bool,
}

impl Uninstall {
    fn take(&mut self, event: Event<PartialObjectMeta<DaemonSet>>) {
        let decided = match event {
            Event::Init => {
                self.listed = false;
                return;
            }
            Event::InitApply(set) | Event::Apply(set) => {
                self.known = true;
                self.listed = true;
                set.metadata.deletion_timestamp.is_some()
            }
            // Deleted while the watch was down. A DaemonSet that never existed is not deleted.
            Event::InitDone if self.known && !self.listed => true,
            Event::InitDone => return,
            Event::Delete(_) => true,
        };
        if decided && !self.decided.load(Ordering::Relaxed) {
            info!("the agent's DaemonSet is deleted: everything is removed when the agent ends");
        }
        self.decided.store(decided, Ordering::Relaxed);
    }
}

/// The current problem of each watch.
#[derive(Debug, Default)]
struct Trouble {
    pods: Option<String>,
    namespaces: Option<String>,
    daemonset: Option<String>,
}

impl Cluster {
    /// Finds the API server as every client does: `KUBECONFIG`, or the service account of the pod
    /// that the agent runs in. Nothing is asked of it yet.
    ///
    /// # Errors
    /// If there is no usable configuration.
    pub async fn new(node: &str, daemonset: Option<&PodRef>) -> Result<Self> {
        let mut config = Config::infer().await.context(
            "find the API server: run in a pod with a service account, set KUBECONFIG, or give pods by --pods-dir",
        )?;
        config.read_timeout = Some(SILENCE);
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).context("prepare to talk to the API server")?;
        info!(server, node, "following the API server");
        let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let pods = watcher(Api::all(client.clone()), of_node).backoff(Pauses::default());
        let all = watcher::Config::default();
        let namespaces = watcher(Api::all(client.clone()), all).backoff(Pauses::default());
        let daemonset: Events<_> = match daemonset {
            Some(name) => {
                let only = format!("metadata.name={}", name.name);
                let only = watcher::Config::default().fields(&only);
                let api = Api::namespaced(client.clone(), &name.namespace);
                Box::pin(watcher(api, only).backoff(Pauses::default()))
            }
            None => Box::pin(futures_util::stream::pending()),
        };
        Ok(Self {
            client,
            daemonset,
            uninstall: Uninstall::default(),
            pods: Box::pin(pods),
            namespaces: Box::pin(namespaces),
            view: View::default(),
            trouble: Trouble::default(),
            changed: false,
            settled: None,
        })
    }

    /// For reports to the API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether the DaemonSet has been deleted.
    pub fn uninstalled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.uninstall.decided)
    }

    /// Waits for a change. Cancel safe.
    pub async fn changed(&mut self) {
        while !self.changed {
            self.next().await;
        }
        // Whatever comes along with it belongs to the same change.
        let settled = *self.settled.get_or_insert_with(|| Instant::now() + SETTLE);
        while Instant::now() < settled {
            tokio::select! {
                () = tokio::time::sleep_until(settled) => break,
                () = self.next() => {}
            }
        }
        self.settled = None;
        self.changed = false;
    }

    /// All pods of the node; `None` until everything was read once.
    pub fn list(&self) -> Option<Listing> {
        self.view.listing(self.trouble.namespaces.is_none())
    }

    /// What is wrong, as sentences.
    pub fn problems(&self) -> Vec<String> {
        let Trouble {
            pods,
            namespaces,
            daemonset,
        } = &self.trouble;
        [pods, namespaces, daemonset]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    async fn next(&mut self) {
        tokio::select! {
            Some(event) = self.pods.next() => {
                if let Some(event) = accept(event, "pods", &mut self.trouble.pods, &mut self.changed) {
                    self.changed |= self.view.pods.take(event);
                }
            }
            Some(event) = self.daemonset.next() => {
                let trouble = &mut self.trouble.daemonset;
                if let Some(event) = accept(event, "the agent's DaemonSet", trouble, &mut self.changed) {
                    self.uninstall.take(event);
                }
            }
            Some(event) = self.namespaces.next() => {
                let trouble = &mut self.trouble.namespaces;
                if let Some(event) = accept(event, "namespaces", trouble, &mut self.changed) {
                    self.changed |= self.view.namespaces.take(event);
                }
            }
        }
    }
}

/// The event, unless it is an error; keeps account of those.
fn accept<K>(
    event: watcher::Result<Event<K>>,
    what: &str,
    trouble: &mut Option<String>,
    changed: &mut bool,
) -> Option<Event<K>> {
    match event {
        Ok(event) => {
            // A new list has only been asked for; it may fail as well.
            if !matches!(event, Event::Init) && trouble.take().is_some() {
                info!("the API server answers again about {what}");
                *changed = true;
            }
            Some(event)
        }
        Err(error) => {
            let problem = format!(
                "watch {what}: {}; the last known state stays active",
                reason(&error)
            );
            if trouble.as_ref() != Some(&problem) {
                error!("{problem}");
                *trouble = Some(problem);
                *changed = true;
            }
            None
        }
    }
}

/// The error with its causes, and what to do about it.
fn reason(error: &watcher::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code,
        watcher::Error::WatchError(status) => status.code,
        _ => 0,
    };
    let cure = match status {
        401 => " (the agent's token is not accepted: look at its service account)",
        403 => " (the agent may not list and watch this: look at its ClusterRole)",
        _ => "",
    };
    text + cure
}

/// Backoff: short at first, because a new pod waits; growing and random, because a thousand agents
/// use the same server.
#[derive(Debug, Default)]
struct Pauses {
    failures: u32,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        const SHORTEST: u64 = 250;
        const DOUBLINGS: u32 = 4;
        let base = SHORTEST << self.failures.min(DOUBLINGS);
        self.failures = self.failures.saturating_add(1);
        let random = std::hash::BuildHasher::hash_one(
            &std::collections::hash_map::RandomState::new(),
            self.failures,
        );
        Some(Duration::from_millis(base / 2 + random % base))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.failures = 0;
    }
}
