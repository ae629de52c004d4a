//! Pods from the API server: this node's pods, and the labels of namespaces.
//!
//! Invariants: nothing is listed before both have been read in full once; while the API server is
//! away the last known state stays listed; an outdated answer changes nothing.

mod events;
mod problem;
pub mod taint;
mod uninstall;
mod view;

use std::{fmt::Debug, pin::Pin, time::Duration};

use anyhow::{Context as _, Result};
use futures_util::{Stream, StreamExt as _, future::ready};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Namespace, Pod},
};
use kube::{
    Api, Client, Config,
    core::{NamespaceResourceScope, PartialObjectMeta},
    runtime::{
        WatchStreamExt as _,
        utils::Backoff,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::info;

pub use self::{
    events::Reporter,
    uninstall::{Ending, SharedEnding},
};
use self::{problem::Problem, uninstall::Uninstall, view::View};
use sidetrack_policy::PodRef;
use sidetrack_reconcile::Listing;

/// One change of the API comes with others: wait this long for them.
const SETTLE: Duration = Duration::from_millis(10);
/// 410 Gone.
const GONE: u16 = 410;
/// Longest silence of a connection. Bookmarks come once a minute; a connection whose other end has
/// vanished says nothing at all.
const SILENCE: Duration = Duration::from_secs(120);

/// Longest wait for a connection. While the API server is away its address may swallow packets, and an attempt that
/// began then would hang long after it is back.
const CONNECT: Duration = Duration::from_secs(3);

type Events<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>;

/// The API server's objects that concern this node.
pub struct Cluster {
    client: Client,
    pods: Events<Pod>,
    namespaces: Events<PartialObjectMeta<Namespace>>,
    daemonset: Events<PartialObjectMeta<DaemonSet>>,
    config: Events<PartialObjectMeta<ConfigMap>>,
    /// The namespace of both.
    own_namespace: Option<String>,
    uninstall: Uninstall,
    view: View,
    trouble: Trouble,
    changed: bool,
    /// When a change may be reported.
    settled: Option<Instant>,
}

/// The current problem of each watch.
#[derive(Debug, Default)]
struct Trouble {
    pods: Option<Problem>,
    namespaces: Option<Problem>,
    daemonset: Option<Problem>,
    config: Option<Problem>,
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
        config.connect_timeout = Some(CONNECT);
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).context("prepare to talk to the API server")?;
        info!(server, node, "following the API server");
        let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let pods = follow(Api::all(client.clone()), of_node);
        let namespaces = follow(Api::all(client.clone()), watcher::Config::default());
        Ok(Self {
            own_namespace: daemonset.map(|name| name.namespace.clone()),
            daemonset: watch_one(&client, daemonset),
            config: watch_one(&client, daemonset),
            client,
            uninstall: Uninstall::default(),
            pods,
            namespaces,
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

    /// What becomes of what the agent installed when it ends.
    pub fn ending(&self) -> SharedEnding {
        self.uninstall.ending.clone()
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
            config,
        } = &self.trouble;
        let all = [pods, namespaces, daemonset, config];
        let all = all.into_iter().flatten();
        all.map(|problem| problem.text().to_owned()).collect()
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
                    self.uninstall.daemonset(&event);
                }
            }
            Some(event) = self.config.next() => {
                let trouble = &mut self.trouble.config;
                if let Some(event) = accept(event, "the agent's ConfigMap", trouble, &mut self.changed) {
                    self.uninstall.config(&event);
                }
            }
            Some(event) = self.namespaces.next() => {
                let trouble = &mut self.trouble.namespaces;
                if let Some(event) = accept(event, "namespaces", trouble, &mut self.changed) {
                    if let Some(ends) = ends(&event, self.own_namespace.as_deref()) {
                        self.uninstall.namespace_ends(ends);
                    }
                    self.changed |= self.view.namespaces.take(event);
                }
            }
        }
    }
}

/// Whether a namespace is being deleted; `None` if the event is not about it.
fn ends(event: &Event<PartialObjectMeta<Namespace>>, namespace: Option<&str>) -> Option<bool> {
    let (Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) = event else {
        return None;
    };
    if namespace.is_none() || object.metadata.name.as_deref() != namespace {
        return None;
    }
    Some(matches!(event, Event::Delete(_)) || object.metadata.deletion_timestamp.is_some())
}

/// Follows one object by its name, if it has one.
fn watch_one<K>(client: &Client, name: Option<&PodRef>) -> Events<PartialObjectMeta<K>>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Send
        + Sync
        + 'static,
{
    let Some(name) = name else {
        return Box::pin(futures_util::stream::pending());
    };
    let only = format!("metadata.name={}", name.name);
    let only = watcher::Config::default().fields(&only);
    let api: Api<PartialObjectMeta<K>> = Api::namespaced(client.clone(), &name.namespace);
    follow(api, only)
}

/// Watches, with pauses after failures.
fn follow<K>(api: Api<K>, config: watcher::Config) -> Events<K>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    follow_with(api, config, Pauses::default())
}

fn follow_with<K>(api: Api<K>, config: watcher::Config, pauses: impl Backoff + 'static) -> Events<K>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    // That the server has forgotten where the watch was is no failure. The list that follows needs no pause.
    let is_forgotten = |event: &watcher::Result<Event<K>>| matches!(event, Err(watcher::Error::WatchError(status)) if status.code == GONE);
    let events = watcher(api, config).filter(move |event| ready(!is_forgotten(event)));
    Box::pin(events.backoff(pauses))
}

/// The event, unless it is an error; keeps account of those.
fn accept<K>(
    event: watcher::Result<Event<K>>,
    what: &str,
    trouble: &mut Option<Problem>,
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
            if trouble.as_ref().map(Problem::text) != Some(&problem) {
                Problem::change(trouble, problem);
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
/// use the same server; never long, because pods start again as soon as that is back.
#[derive(Debug, Default)]
struct Pauses {
    failures: u32,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        const SHORTEST: u64 = 250;
        const DOUBLINGS: u32 = 2;
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

#[cfg(test)]
mod tests;
