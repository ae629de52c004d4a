//! How many rows of ROUTE_BY_POD and IFACE_BY_POD a pod may have: some that each is sure to get, and more as long as its
//! namespace has not used its quota of the rest. A pod can make routes and interfaces without end, and a namespace pods.

use std::collections::HashMap;

use sidetrack_common::{
    ids::NetnsCookie,
    names::{IFACE_CAPACITY, MAX_PODS, ROUTE_CAPACITY},
};

use super::ifaces::MAX_IFACES;
use crate::netns::routes::MAX_ROUTES;

/// The rows of one map.
#[derive(Debug)]
pub struct RowQuota {
    /// Rows that every pod of a full node gets.
    guarantee: usize,
    /// Rows that a pod may have on top, which are not counted.
    free: usize,
    /// Rows for pods with more; the pods of a namespace may have a quarter of them.
    pool: usize,
    /// Rows that a pod may have at most.
    most: usize,
    /// Rows beyond the guarantee, with the pod's namespace.
    more: HashMap<NetnsCookie, (String, usize)>,
}

/// The rows of all pods.
#[derive(Debug)]
pub struct RowQuotas {
    /// ROUTE_BY_POD. The rows for everything, of IPv4 and IPv6, are free.
    pub routes: RowQuota,
    /// IFACE_BY_POD.
    pub ifaces: RowQuota,
}

impl Default for RowQuotas {
    fn default() -> Self {
        Self {
            routes: RowQuota::new(ROUTE_CAPACITY, (24, 2), MAX_ROUTES),
            ifaces: RowQuota::new(IFACE_CAPACITY, (8, 0), MAX_IFACES),
        }
    }
}

impl RowQuota {
    fn new(capacity: usize, (guarantee, free): (usize, usize), most: usize) -> Self {
        Self {
            guarantee,
            free,
            pool: capacity - MAX_PODS as usize * (guarantee + free),
            most,
            more: HashMap::new(),
        }
    }

    /// The most rows that a pod may have now, besides the free ones.
    #[must_use]
    pub fn most(&self, cookie: NetnsCookie, namespace: &str) -> usize {
        let others = self.more.iter().filter(|(other, _)| **other != cookie);
        let (mut all, mut of_namespace) = (0, 0);
        for (_, (other, rows)) in others {
            all += rows;
            of_namespace += if other == namespace { *rows } else { 0 };
        }
        let remaining = self
            .pool
            .saturating_sub(all)
            .min((self.pool / 4).saturating_sub(of_namespace));
        (self.guarantee + remaining).min(self.most)
    }

    /// Notes the rows that a pod has.
    pub fn note(&mut self, cookie: NetnsCookie, namespace: String, rows: usize) {
        match rows.saturating_sub(self.guarantee + self.free) {
            0 => self.more.remove(&cookie),
            more => self.more.insert(cookie, (namespace, more)),
        };
    }
}

#[cfg(test)]
mod tests;
