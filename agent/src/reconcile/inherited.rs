//! Pods that an earlier agent enrolled: still judged, until this agent's first complete list says
//! what becomes of them.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;
use sidetrack_common::pod::{Pod, Route};
use tracing::{error, info};

use super::enrolment::{remove_counts, remove_listeners};
use crate::{
    bpf::{Datapath, maps::Maps},
    netns::routes::RouteId,
};

/// What was found.
#[derive(Debug, Default)]
pub struct Inherited {
    pods: HashMap<u64, Found>,
}

#[derive(Debug, Default)]
struct Found {
    name: String,
    flags: u32,
    routes: HashMap<RouteId, Route>,
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
                    name: full_name(&row),
                    flags: row.flags,
                    routes: HashMap::new(),
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
        let gone: Vec<u64> = inherited
            .pods
            .keys()
            .copied()
            .filter(|cookie| !matches!(datapath.refresh_pod(*cookie), Ok(true)))
            .collect();
        for cookie in gone {
            inherited.drop_one(cookie, datapath);
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

    /// It is ours now.
    pub fn forget(&mut self, cookie: u64) {
        self.pods.remove(&cookie);
    }

    /// Removes all but the given ones.
    pub fn drop_except(&mut self, known: &BTreeSet<u64>, datapath: &Datapath) {
        let gone: Vec<u64> = self
            .pods
            .keys()
            .copied()
            .filter(|cookie| !known.contains(cookie))
            .collect();
        for cookie in gone {
            self.drop_one(cookie, datapath);
        }
    }

    fn drop_one(&mut self, cookie: u64, datapath: &Datapath) {
        let Some(found) = self.pods.remove(&cookie) else {
            return;
        };
        match remove(cookie, &found, datapath) {
            Ok(()) => info!(pod = found.name, cookie, "removed: it is gone"),
            Err(error) => error!(
                pod = found.name,
                cookie, "remove a pod that is gone: {error:#}"
            ),
        }
    }
}

fn remove(cookie: u64, found: &Found, datapath: &Datapath) -> Result<()> {
    let maps: &Maps = &datapath.maps;
    maps.pods.remove(&cookie)?;
    datapath.detach_pod(cookie)?;
    for route in found.routes.keys() {
        maps.routes.remove(&route.key())?;
    }
    for key in maps.ifaces.keys()?.iter().filter(|key| key.netns == cookie) {
        maps.ifaces.remove(key)?;
    }
    remove_listeners(cookie, maps)?;
    remove_counts(cookie, maps)
}

/// `namespace/name` of a row.
fn full_name(row: &Pod) -> String {
    let (namespace, name, _) = names(row);
    format!("{namespace}/{name}")
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
