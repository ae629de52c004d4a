//! Objects with their history.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    create::Admission,
    exec::{Handler, PROTOCOLS},
    readers::Readers,
};

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Pods of all namespaces.
    Pods,
    /// Namespaces.
    Namespaces,
    /// DaemonSets of all namespaces.
    DaemonSets,
    /// ConfigMaps of all namespaces.
    ConfigMaps,
    /// Nodes.
    Nodes,
    /// Deployments of all namespaces.
    Deployments,
    /// MutatingWebhookConfigurations.
    InjectorWebhooks,
    /// Services of all namespaces.
    Services,
    /// RuntimeClasses.
    RuntimeClasses,
}

/// One request, as RBAC names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `patch`, `delete`.
    pub verb: &'static str,
    /// API group.
    pub group: &'static str,
    /// Resource.
    pub resource: &'static str,
}

/// An entry of the history.
#[derive(Clone, Debug)]
pub struct Change {
    pub version: u64,
    pub resource: Option<Resource>,
    pub kind: &'static str,
    pub object: Value,
}

/// What clients have asked for and got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many requests.
    pub requests: u64,
    /// Bytes of the answers, without their headers.
    pub bytes: u64,
}

impl Traffic {
    /// What has come since.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

/// Everything.
#[derive(Debug)]
pub struct Store {
    inner: Mutex<Inner>,
    readers: Mutex<Readers>,
    /// Length of the history, for those who wait.
    grown: watch::Sender<usize>,
}

#[derive(Default)]
struct Inner {
    version: u64,
    /// Versions up to this one are forgotten.
    compacted: u64,
    objects: BTreeMap<(Resource, String, String), Value>,
    history: Vec<Change>,
    events: Vec<Value>,
    requests: BTreeSet<Request>,
    traffic: Traffic,
    /// Whom requests impersonated: user, then groups.
    impersonated: BTreeSet<Vec<String>>,
    delay: Duration,
    /// Whether the token is no longer accepted.
    revoked: bool,
    /// What may not be listed.
    forbidden: BTreeSet<Resource>,
    /// How many Events are refused from now on.
    refused_events: usize,
    /// When Events were sent, also those that were refused.
    event_attempts: Vec<Instant>,
    /// What pods were patched with.
    pod_patches: Vec<Value>,
    /// A text in answers, and what takes its place.
    substitute: Option<(String, String)>,
    /// Decides about commands in containers.
    exec: Option<Handler>,
    exec_protocols: Vec<&'static str>,
    /// Decides about objects that clients create.
    admission: Option<Admission>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("version", &self.version)
            .field("objects", &self.objects)
            .finish_non_exhaustive()
    }
}

impl Default for Store {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                version: 1000,
                exec_protocols: PROTOCOLS.to_vec(),
                ..Inner::default()
            }),
            readers: Mutex::default(),
            grown: watch::Sender::new(0),
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock()
    }

    pub fn apply(&self, resource: Resource, mut object: Value) -> Result<()> {
        let mut inner = self.lock();
        inner.version += 1;
        let version = inner.version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let key = key(resource, &object)?;
        let before = inner.objects.insert(key, object.clone());
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.record(inner, version, Some(resource), kind, object);
        Ok(())
    }

    pub fn set_substitute(&self, text: &str, by: String) {
        self.lock().substitute = Some((text.to_owned(), by));
    }

    /// The text of an answer as it is sent.
    pub fn substituted(&self, text: String) -> String {
        match &self.lock().substitute {
            Some((from, to)) => text.replace(from, to),
            None => text,
        }
    }

    pub fn is_revoked(&self) -> bool {
        self.lock().revoked
    }

    pub fn set_revoked(&self, revoked: bool) {
        self.lock().revoked = revoked;
    }

    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Value> {
        let key = (resource, namespace.to_owned(), name.to_owned());
        self.lock().objects.get(&key).cloned()
    }

    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> Result<()> {
        let mut inner = self.lock();
        let key = (resource, namespace.to_owned(), name.to_owned());
        let mut object = inner.objects.remove(&key).context("no such object")?;
        inner.version += 1;
        let version = inner.version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        self.record(inner, version, Some(resource), "DELETED", object);
        Ok(())
    }

    pub fn repeat_last(&self) {
        let inner = self.lock();
        if let Some(last) = inner.history.last().cloned() {
            self.record(inner, last.version, last.resource, last.kind, last.object);
        }
    }

    pub fn bookmark(&self) {
        let inner = self.lock();
        let version = inner.version;
        let object = json!({"metadata": {
            "resourceVersion": version.to_string(),
            "creationTimestamp": null,
        }});
        self.record(inner, version, None, "BOOKMARK", object);
    }

    pub fn compact(&self) {
        let mut inner = self.lock();
        inner.version += 100;
        inner.compacted = inner.version;
    }

    fn record(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        version: u64,
        resource: Option<Resource>,
        kind: &'static str,
        object: Value,
    ) {
        inner.history.push(Change {
            version,
            resource,
            kind,
            object,
        });
        let length = inner.history.len();
        drop(inner);
        self.grown.send_replace(length);
    }

    pub fn set_delay(&self, delay: Duration) {
        self.lock().delay = delay;
    }

    pub fn delay(&self) -> Duration {
        self.lock().delay
    }

    pub fn forbid(&self, resource: Resource) {
        self.lock().forbidden.insert(resource);
    }

    pub fn permit(&self, resource: Resource) {
        self.lock().forbidden.remove(&resource);
    }

    pub fn refuse_events(&self, count: usize) {
        self.lock().refused_events = count;
    }

    /// Whether the next Event is refused.
    pub fn refuses_event(&self) -> bool {
        let mut inner = self.lock();
        inner.event_attempts.push(Instant::now());
        let refuses = inner.refused_events > 0;
        inner.refused_events = inner.refused_events.saturating_sub(1);
        refuses
    }

    pub fn event_attempts(&self) -> Vec<Instant> {
        self.lock().event_attempts.clone()
    }

    pub fn add_pod_patch(&self, patch: Value) {
        self.lock().pod_patches.push(patch);
    }

    pub fn pod_patches(&self) -> Vec<Value> {
        self.lock().pod_patches.clone()
    }

    pub fn is_forbidden(&self, resource: Resource) -> bool {
        self.lock().forbidden.contains(&resource)
    }

    pub fn set_exec_handler(&self, handler: Handler) {
        self.lock().exec = Some(handler);
    }

    pub fn set_exec_protocols(&self, protocols: &[&'static str]) {
        self.lock().exec_protocols = protocols.to_vec();
    }

    /// The protocols of `pods/exec`, and who decides.
    pub fn exec(&self) -> (Vec<&'static str>, Option<Handler>) {
        let inner = self.lock();
        (inner.exec_protocols.clone(), inner.exec.clone())
    }

    pub fn set_admission(&self, admission: Admission) {
        self.lock().admission = Some(admission);
    }

    pub fn admission(&self) -> Option<Admission> {
        self.lock().admission.clone()
    }

    /// Deletes a namespace with everything in it.
    pub fn delete_namespace(&self, name: &str) -> Result<()> {
        let contained: Vec<(Resource, String)> = {
            let inner = self.lock();
            let keys = inner.objects.keys().filter(|(_, of, _)| of == name);
            keys.map(|(resource, _, object)| (*resource, object.clone()))
                .collect()
        };
        for (resource, object) in contained {
            self.delete(resource, name, &object)?;
        }
        self.delete(Resource::Namespaces, "", name)
    }

    pub fn asked(&self, verb: &'static str, group: &'static str, resource: &'static str) {
        self.lock().requests.insert(Request {
            verb,
            group,
            resource,
        });
    }

    pub fn add_request(&self) {
        self.lock().traffic.requests += 1;
    }

    pub fn add_bytes(&self, bytes: usize) {
        self.lock().traffic.bytes += bytes as u64;
    }

    pub fn traffic(&self) -> Traffic {
        self.lock().traffic
    }

    pub fn impersonate(&self, names: Vec<String>) {
        self.lock().impersonated.insert(names);
    }

    pub fn impersonated(&self) -> BTreeSet<Vec<String>> {
        self.lock().impersonated.clone()
    }

    pub fn forget_requests(&self) {
        self.lock().requests.clear();
    }

    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.iter().cloned().collect()
    }

    pub fn add_event(&self, event: Value) {
        self.lock().events.push(event);
    }

    pub fn events(&self) -> Vec<Value> {
        self.lock().events.clone()
    }

    /// All objects of a kind, and the version they are as of.
    pub fn list(&self, resource: Resource) -> (Vec<Value>, u64) {
        let inner = self.lock();
        let objects = inner
            .objects
            .iter()
            .filter(|((of, _, _), _)| *of == resource)
            .map(|(_, object)| object.clone())
            .collect();
        (objects, inner.version)
    }

    /// Where in the history a watch from a version begins; `None` if that is forgotten.
    pub fn position(&self, version: u64) -> Option<usize> {
        let inner = self.lock();
        if version < inner.compacted {
            return None;
        }
        let newer = |change: &Change| change.version > version;
        Some(
            inner
                .history
                .iter()
                .position(newer)
                .unwrap_or(inner.history.len()),
        )
    }

    /// History from a position on.
    pub fn since(&self, position: usize) -> Vec<Change> {
        self.lock().history[position..].to_vec()
    }

    /// Changes when the history grows.
    pub fn growth(&self) -> watch::Receiver<usize> {
        self.grown.subscribe()
    }
}

fn key(resource: Resource, object: &Value) -> Result<(Resource, String, String)> {
    let meta = &object["metadata"];
    let name = meta["name"].as_str().context("an object without a name")?;
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    Ok((resource, namespace.to_owned(), name.to_owned()))
}
