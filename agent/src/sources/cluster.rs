//! Pods from the API server: this node's pods, and the labels of namespaces.
//!
//! Invariants: nothing is listed before both have been read in full once; while the API server is
//! away the last known state stays listed; an outdated answer changes nothing.

mod client;
mod credentials;
mod events;
mod pauses;
mod problem;
pub mod redirection;
pub mod taint;
mod uninstall;
mod view;
mod watch;

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::{Client, Config, runtime::watcher::Event};
use tokio::{sync, time::Instant};
use tracing::info;

use self::{
    credentials::Credentials,
    pauses::Backoff,
    problem::{Problem, UNAUTHORIZED},
    uninstall::Uninstall,
    view::{Followed as _, View},
    watch::{Failure, Object, Target, Timeouts, Update, Watch},
};
pub use self::{
    events::Reporter,
    redirection::{Redirection, Redirections},
    uninstall::Ending,
};
use sidetrack_base::runtime::sleep_until;
use sidetrack_policy::{
    PodRef,
    facts::{ObjectFacts, PodFacts},
    gate::{self, OPEN_GATE},
};
use sidetrack_reconcile::Listing;

/// One change of the API comes with others: wait this long for them.
const SETTLE: Duration = Duration::from_millis(10);

const NOT_FOUND: u16 = 404;

/// Pods that exceeded a quota are listed again this long after there is room.
const RELIST_INTERVAL: Duration = Duration::from_secs(30);

/// How long the API server cannot be asked before credentials that have changed are a reason for another agent.
const OBSOLETE_AFTER: Duration = Duration::from_secs(30);

/// The API server's objects that concern this node.
pub struct Cluster {
    client: Client,
    credentials: Credentials,
    pods: Watch<PodFacts>,
    namespaces: Watch<ObjectFacts>,
    classes: Watch<ObjectFacts>,
    daemonset: Watch<ObjectFacts>,
    config: Watch<ObjectFacts>,
    /// The name of both.
    own_name: Option<PodRef>,
    node: String,
    /// Whether the DaemonSet says that the gate of this node is open.
    gate_is_open: bool,
    uninstall: Uninstall,
    view: View,
    trouble: Trouble,
    changed: bool,
    /// When a change may be reported.
    settled: Option<Instant>,
    /// When pods are listed again.
    relist: Option<Instant>,
}

/// The current problem of each watch.
#[derive(Debug, Default)]
struct Trouble {
    pods: Option<Problem>,
    namespaces: Option<Problem>,
    classes: Option<Problem>,
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
        let credentials = Credentials::now();
        let config = Config::infer().await.context(
            "find the API server: run in a pod with a service account, set KUBECONFIG, or give pods by --pods-dir",
        )?;
        let server = config.cluster_url.to_string();
        let client = client::connect(&config, client::ANSWER_TIMEOUT)
            .context("prepare to talk to the API server")?;
        info!(server, node, "following the API server");
        let of_node = Some(format!("spec.nodeName={node}"));
        let soon = Backoff::default;
        let pods = follow(&client, "/api/v1/pods", of_node, false, soon());
        let namespaces = follow(&client, "/api/v1/namespaces", None, true, soon());
        let path = "/apis/node.k8s.io/v1/runtimeclasses";
        let classes = follow(&client, path, None, false, Backoff::seldom());
        Ok(Self {
            own_name: daemonset.cloned(),
            node: node.to_owned(),
            gate_is_open: false,
            daemonset: follow_one(&client, "apis/apps/v1", "daemonsets", daemonset),
            config: follow_one(&client, "api/v1", "configmaps", daemonset),
            client,
            credentials,
            uninstall: Uninstall::default(),
            pods,
            namespaces,
            classes,
            view: View::default(),
            trouble: Trouble::default(),
            changed: false,
            settled: None,
            relist: None,
        })
    }

    /// For reports to the API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What becomes of what the agent installed when it ends.
    pub fn ending(&self) -> sync::watch::Receiver<Ending> {
        self.uninstall.ending.subscribe()
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

    /// Why an agent that starts now could ask the API server, and this one cannot.
    pub fn obsolete(&self) -> Option<&'static str> {
        let pods = self.trouble.pods.as_ref();
        let fails = pods.is_some_and(|it| it.since().elapsed() > OBSOLETE_AFTER);
        (fails && self.credentials.have_changed()).then_some(
            "the API server cannot be asked with the credentials that this agent started with, and there are others now: it ends so that the next one uses them; interception continues",
        )
    }

    /// What is wrong, as sentences.
    pub fn problems(&self) -> Vec<String> {
        let Trouble {
            pods,
            namespaces,
            classes,
            daemonset,
            config,
        } = &self.trouble;
        let all = [pods, namespaces, classes, daemonset, config];
        let all = all.into_iter().flatten();
        let all = all.map(|problem| problem.text().to_owned());
        all.chain(self.too_many())
            .chain(self.wrong_name())
            .chain(self.open_gate())
            .collect()
    }

    fn open_gate(&self) -> Option<String> {
        let name = self.own_name.as_ref()?;
        self.gate_is_open.then(|| format!(
            "the gate of this node is open by annotation {OPEN_GATE} of DaemonSet {name}: while the agent does not answer or is not ready, pods start past their sidecars. `kubectl annotate daemonset {} -n {} {OPEN_GATE}-` closes it",
            name.name, name.namespace
        ))
    }

    /// The CNI plugin asks the API server about the same name.
    fn wrong_name(&self) -> Option<String> {
        let name = self.own_name.as_ref()?;
        self.uninstall.has_wrong_name().then(|| format!(
            "there is no DaemonSet {name}: correct --daemonset, or pass --own-pod. Until then the CNI plugin takes sidetrack for uninstalled: while no agent answers, pods start past their sidecars"
        ))
    }

    /// Objects may have been kept in part, or not at all, for which there is room now.
    fn list_again_if_room(&mut self) {
        if self.view.take_has_room() {
            self.relist
                .get_or_insert_with(|| Instant::now() + RELIST_INTERVAL);
        }
    }

    /// Objects beyond what is followed.
    fn too_many(&self) -> Option<String> {
        let View {
            pods, namespaces, ..
        } = &self.view;
        let pod = pods.omitted().map(|pod| {
            format!(
                "pod {pod}, perhaps others as well, is not followed: there are more than {} pods on this node that have not ended, or {} of its namespace; remove those that kubelet does not run",
                PodFacts::MAX_COUNT,
                PodFacts::MAX_COUNT_OF_NAMESPACE
            )
        });
        let namespace = || {
            let namespace = namespaces.omitted()?;
            let most = ObjectFacts::MAX_COUNT;
            Some(format!(
                "namespace {namespace}, perhaps others as well, is not followed: there are more than {most}"
            ))
        };
        pod.or_else(namespace)
    }

    async fn next(&mut self) {
        tokio::select! {
            update = self.pods.next() => {
                if let Some(event) = accept(update, "pods", &mut self.trouble.pods, &mut self.changed) {
                    self.changed |= self.view.pods.take(event);
                    self.list_again_if_room();
                }
            }
            () = sleep_until(self.relist) => {
                self.relist = None;
                self.pods.list_again();
                self.namespaces.list_again();
            }
            update = self.classes.next() => {
                let failure = match &update {
                    Update::Failed(failure) => Some(failure),
                    Update::Event(_) | Update::Current => None,
                };
                // A server that is away gives no answer about pods, either.
                let fails = failure.is_some_and(|it| it.is_lasting() || self.view.has_pods());
                self.changed |= fails && !self.view.classes_failed;
                self.view.classes_failed |= fails;
                // A server may have no such objects.
                let are_none = failure.is_some_and(|it| it.code() == NOT_FOUND);
                let trouble = &mut self.trouble.classes;
                if are_none {
                    self.changed |= trouble.take().is_some();
                } else if let Some(event) = accept(update, "runtime classes", trouble, &mut self.changed)
                {
                    self.changed |= self.view.classes.take(event);
                }
            }
            update = self.daemonset.next() => {
                let trouble = &mut self.trouble.daemonset;
                if let Some(event) = accept(update, "the agent's DaemonSet", trouble, &mut self.changed) {
                    let had_wrong_name = self.uninstall.has_wrong_name();
                    self.uninstall.daemonset(&event);
                    let value = match &event {
                        Event::InitApply(object) | Event::Apply(object) => {
                            Some(object.open_gate.as_deref())
                        }
                        Event::Delete(_) => Some(None),
                        Event::Init | Event::InitDone => None,
                    };
                    if let Some(value) = value {
                        let opens = value.is_some_and(|it| gate::opens(it, Some(&self.node)));
                        self.changed |= self.gate_is_open != opens;
                        self.gate_is_open = opens;
                    }
                    self.changed |= had_wrong_name != self.uninstall.has_wrong_name();
                }
                let trouble = &self.trouble.daemonset;
                self.uninstall.refused(trouble.as_ref().is_some_and(Problem::is_refused));
            }
            update = self.config.next() => {
                let trouble = &mut self.trouble.config;
                if let Some(event) = accept(update, "the agent's ConfigMap", trouble, &mut self.changed) {
                    self.uninstall.config(&event);
                }
            }
            update = self.namespaces.next() => {
                let own_namespace = self.own_name.as_ref().map(|name| name.namespace.as_str());
                let trouble = &mut self.trouble.namespaces;
                if let Some(event) = accept(update, "namespaces", trouble, &mut self.changed) {
                    if let Some(ends) = ends(&event, own_namespace) {
                        self.uninstall.namespace_ends(ends);
                    }
                    self.changed |= self.view.namespaces.take(event);
                    self.list_again_if_room();
                }
            }
        }
    }
}

/// Whether a namespace is being deleted; `None` if the event is not about it.
fn ends(event: &Event<ObjectFacts>, namespace: Option<&str>) -> Option<bool> {
    let (Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) = event else {
        return None;
    };
    if namespace.is_none() || object.meta.name.as_deref() != namespace {
        return None;
    }
    Some(matches!(event, Event::Delete(_)) || object.meta.is_deleted())
}

/// Follows one object by its name, if it has one.
fn follow_one(
    client: &Client,
    api: &str,
    plural: &str,
    name: Option<&PodRef>,
) -> Watch<ObjectFacts> {
    let Some(name) = name else {
        return Watch::nothing();
    };
    let path = format!("/{api}/namespaces/{}/{plural}", name.namespace);
    let only = format!("metadata.name={}", name.name);
    follow(client, &path, Some(only), true, Backoff::default())
}

fn follow<K: Object>(
    client: &Client,
    path: &str,
    fields: Option<String>,
    metadata_only: bool,
    pauses: impl watch::Pauses + Send + 'static,
) -> Watch<K> {
    let target = Target {
        path: path.to_owned(),
        fields,
        metadata_only,
    };
    Watch::start(client.clone(), target, Timeouts::default(), pauses)
}

/// The event, if the update is one; keeps account of requests that fail.
fn accept<K>(
    update: Update<K>,
    what: &str,
    trouble: &mut Option<Problem>,
    changed: &mut bool,
) -> Option<Event<K>> {
    match update {
        Update::Event(event) => return Some(event),
        Update::Current => {
            if trouble.take().is_some() {
                info!("the API server answers again about {what}");
                *changed = true;
            }
        }
        Update::Failed(failure) => {
            let cure = cure(&failure);
            let problem =
                format!("watch {what}: {failure}{cure}; the last known state stays active");
            if trouble.as_ref().map(Problem::text) != Some(&problem) {
                Problem::change(trouble, problem, failure.code());
                *changed = true;
            }
        }
    }
    None
}

/// What to do about a failure.
fn cure(failure: &Failure) -> &'static str {
    match failure.code() {
        UNAUTHORIZED => {
            " (the agent's token is not accepted: if that stays so, delete the agent's pod, since a running one gets a new token only within an hour)"
        }
        403 => " (the agent may not list and watch this: look at its ClusterRole)",
        _ => "",
    }
}
