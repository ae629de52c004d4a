//! Pods that an earlier agent enrolled: still judged, until this agent's first complete list says
//! what becomes of them.

use std::collections::HashMap;

use anyhow::Result;
use sidetrack_common::pod::{IfaceKey, IfaceRow, Pod, Route};
use tracing::{error, info, warn};

use super::enrollment::{remove_counts, remove_listeners};
use crate::{
    kernel::{Datapath, maps::Maps},
    netns::routes::RouteId,
};
use sidetrack_policy::PodRef;

/// What was found.
#[derive(Debug, Default)]
pub struct Inherited {
    pods: HashMap<u64, Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// Who it is; `None` for remains without a pod row.
    name: Option<PodRef>,
    flags: u32,
    /// Inode of the namespace, 0 for remains.
    inode: u64,
    routes: HashMap<RouteId, Route>,
    ifaces: HashMap<u32, IfaceRow>,
}

impl Inherited {
    /// Gives every pod that is attached this build's sk_lookup program; removes those whose
    /// network namespace is gone.
    pub fn take_over(datapath: &Datapath) -> Result<Self> {
        let mut inherited = Self::default();
        for (cookie, row) in datapath.maps.pods.rows()? {
            inherited.pods.insert(
                cookie,
                Found {
                    name: Some(pod_ref(&row)),
                    flags: row.flags,
                    inode: row.netns_inode,
                    ..Found::default()
                },
            );
        }
        for cookie in datapath.attached_pods()? {
            inherited.pods.entry(cookie).or_default();
        }
        for (key, route) in datapath.maps.routes.rows()? {
            let found = inherited.pods.entry(key.netns).or_default();
            if let Some(id) = RouteId::of(&key) {
                found.routes.insert(id, route);
            }
        }
        for (key, row) in datapath.maps.ifaces.rows()? {
            let found = inherited.pods.entry(key.netns).or_default();
            found.ifaces.insert(key.ifindex, row);
        }
        // An agent that is killed while it removes a pod may have got as far as these.
        let listeners = datapath.maps.listeners.keys()?;
        let counts = datapath.maps.counts.keys()?;
        let handshakes = datapath.maps.handshakes_by_pod.keys()?;
        let remains = listeners.iter().map(|key| key.netns);
        let remains = remains.chain(counts.iter().map(|key| key.netns));
        for cookie in remains.chain(handshakes) {
            inherited.pods.entry(cookie).or_default();
        }
        let cookies: Vec<u64> = inherited.pods.keys().copied().collect();
        for cookie in cookies {
            let remains_only = inherited.pods[&cookie].name.is_none();
            match datapath.refresh_pod(cookie) {
                Ok(true) => {}
                Ok(false) => inherited.drop_one(cookie, datapath),
                Err(_) if remains_only => inherited.drop_one(cookie, datapath),
                // Whatever it was, the program that is attached goes on.
                Err(error) => warn!(cookie, "keep the pod's earlier program: {error:#}"),
            }
        }
        if !inherited.pods.is_empty() {
            info!(
                pods = inherited.pods.len(),
                "took over from an earlier agent"
            );
        }
        Ok(inherited)
    }

    /// Whether an earlier agent enrolled this namespace.
    pub fn has(&self, cookie: u64) -> bool {
        self.pods.contains_key(&cookie)
    }

    /// Flags of the pod's row.
    pub fn flags(&self, cookie: u64) -> u32 {
        self.pods.get(&cookie).map_or(0, |found| found.flags)
    }

    /// Routes the map has for it.
    pub fn routes(&self, cookie: u64) -> HashMap<RouteId, Route> {
        self.pods
            .get(&cookie)
            .map(|found| found.routes.clone())
            .unwrap_or_default()
    }

    /// Interfaces the map has for it.
    pub fn ifaces(&self, cookie: u64) -> HashMap<u32, IfaceRow> {
        self.pods
            .get(&cookie)
            .map(|found| found.ifaces.clone())
            .unwrap_or_default()
    }

    /// It could not be enrolled again; these are its rows now.
    pub fn add_rows(
        &mut self,
        cookie: u64,
        routes: HashMap<RouteId, Route>,
        ifaces: HashMap<u32, IfaceRow>,
    ) {
        if let Some(found) = self.pods.get_mut(&cookie) {
            (found.routes, found.ifaces) = (routes, ifaces);
        }
    }

    /// It is ours now.
    pub fn forget(&mut self, cookie: u64) {
        self.pods.remove(&cookie);
    }

    /// Who an earlier agent enrolled this namespace for.
    pub fn name(&self, cookie: u64) -> Option<&PodRef> {
        self.pods.get(&cookie)?.name.as_ref()
    }

    /// Inode of the namespace a pod was enrolled in.
    pub fn inode(&self, name: &PodRef) -> Option<u64> {
        let mut all = self.pods.values();
        all.find(|found| found.name.as_ref() == Some(name))
            .map(|found| found.inode)
    }

    /// Cookies and inodes of the namespaces of those whose names are known.
    pub fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        let named = self.pods.iter().filter(|(_, found)| found.name.is_some());
        named.map(|(cookie, found)| (*cookie, found.inode))
    }

    /// Whether a pod is still judged by what an earlier agent wrote.
    pub fn holds(&self, name: &PodRef) -> bool {
        self.pods
            .values()
            .any(|found| found.name.as_ref() == Some(name))
    }

    /// Whether all are pods that `listed` knows.
    pub fn all(&self, listed: impl Fn(&PodRef) -> bool) -> bool {
        let mut all = self.pods.values();
        all.all(|found| found.name.as_ref().is_some_and(&listed))
    }

    /// Removes those that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&PodRef, u64) -> bool, datapath: &Datapath) {
        let kept = |found: &Found| {
            let name = found.name.as_ref();
            name.is_some_and(|name| keep(name, found.inode))
        };
        let gone: Vec<u64> = self
            .pods
            .iter()
            .filter(|(_, found)| !kept(found))
            .map(|(cookie, _)| *cookie)
            .collect();
        for cookie in gone {
            self.drop_one(cookie, datapath);
        }
    }

    /// Removes one whose namespace is gone.
    pub fn drop_one(&mut self, cookie: u64, datapath: &Datapath) {
        let Some(found) = self.pods.remove(&cookie) else {
            return;
        };
        let name = found.name.as_ref().map(ToString::to_string);
        match remove(cookie, &found, datapath) {
            Ok(()) => info!(pod = name, cookie, "removed: it is gone"),
            Err(error) => error!(pod = name, cookie, "remove a pod that is gone: {error:#}"),
        }
    }
}

fn remove(cookie: u64, found: &Found, datapath: &Datapath) -> Result<()> {
    let maps: &Maps = &datapath.maps;
    maps.pods.remove(&cookie)?;
    datapath.detach_pod(cookie)?;
    maps.before_sidecar.remove(&cookie)?;
    maps.handshakes_by_pod.remove(&cookie)?;
    for route in found.routes.keys() {
        maps.routes.remove(&route.key())?;
    }
    for ifindex in found.ifaces.keys() {
        maps.ifaces.remove(&IfaceKey {
            netns: cookie,
            ifindex: *ifindex,
            pad: 0,
        })?;
    }
    remove_listeners(cookie, maps)?;
    remove_counts(cookie, maps)
}

fn pod_ref(row: &Pod) -> PodRef {
    let (namespace, name, _) = names(row);
    PodRef { namespace, name }
}

/// Namespace, name and UID in a row.
#[must_use]
pub fn names(row: &Pod) -> (String, String, Option<String>) {
    let uid = text(&row.uid);
    (
        text(&row.namespace),
        text(&row.name),
        (!uid.is_empty()).then_some(uid),
    )
}

/// The text before the padding.
fn text(padded: &[u8]) -> String {
    let end = padded
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(padded.len());
    String::from_utf8_lossy(&padded[..end]).into_owned()
}
