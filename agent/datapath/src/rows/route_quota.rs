//! How many rows of ROUTE_BY_POD a pod may have: some that each is sure to get, and more as long as its namespace has not
//! used its quota of the rest. A pod can make routes without end, and a namespace pods.

use std::collections::HashMap;

use sidetrack_common::{
    ids::NetnsCookie,
    names::{MAX_PODS, ROUTE_CAPACITY},
};

use crate::netns::routes::MAX_ROUTES;

/// Rows that every pod of a full node gets.
const GUARANTEE: usize = 24;
/// Rows for everything, of IPv4 and IPv6, that a pod may have on top.
const DEFAULTS: usize = 2;
/// Rows for pods with more.
const POOL: usize = ROUTE_CAPACITY - MAX_PODS as usize * (GUARANTEE + DEFAULTS);
/// Rows of the pool that the pods of a namespace may have.
const OF_NAMESPACE: usize = POOL / 4;

/// The rows of all pods.
#[derive(Debug, Default)]
pub struct RouteQuota {
    /// Rows beyond the guarantee, with the pod's namespace.
    more: HashMap<NetnsCookie, (String, usize)>,
}

impl RouteQuota {
    /// The most rows that a pod may have now, besides those for everything.
    #[must_use]
    pub fn most(&self, cookie: NetnsCookie, namespace: &str) -> usize {
        let others = self.more.iter().filter(|(other, _)| **other != cookie);
        let (mut all, mut of_namespace) = (0, 0);
        for (_, (other, rows)) in others {
            all += rows;
            of_namespace += if other == namespace { *rows } else { 0 };
        }
        let remaining = POOL
            .saturating_sub(all)
            .min(OF_NAMESPACE.saturating_sub(of_namespace));
        (GUARANTEE + remaining).min(MAX_ROUTES)
    }

    /// Notes the rows that a pod has.
    pub fn note(&mut self, cookie: NetnsCookie, namespace: String, rows: usize) {
        match rows.saturating_sub(GUARANTEE + DEFAULTS) {
            0 => self.more.remove(&cookie),
            more => self.more.insert(cookie, (namespace, more)),
        };
    }
}

const _: () = assert!(OF_NAMESPACE >= 2 * MAX_ROUTES);

#[cfg(test)]
mod tests {
    use super::*;

    const fn cookie(number: usize) -> NetnsCookie {
        NetnsCookie::new(number as u64)
    }

    /// Gives pods of a namespace as much as they get; answers how many rows that are.
    fn fill(quota: &mut RouteQuota, namespace: &str, pods: std::ops::Range<usize>) -> usize {
        let one = |number| {
            let most = quota.most(cookie(number), namespace);
            quota.note(cookie(number), namespace.to_owned(), most + DEFAULTS);
            most + DEFAULTS
        };
        pods.map(one).sum()
    }

    #[test]
    fn a_namespace_has_its_quota_and_each_pod_its_guarantee() {
        let mut quota = RouteQuota::default();
        assert_eq!(quota.most(cookie(0), "greedy"), MAX_ROUTES);
        let all = fill(&mut quota, "greedy", 0..100);
        assert_eq!(all, OF_NAMESPACE + 100 * (GUARANTEE + DEFAULTS));
        assert_eq!(quota.most(cookie(100), "greedy"), GUARANTEE);
        assert_eq!(quota.most(cookie(100), "other"), MAX_ROUTES);
        // What a pod has does not count against itself, and is free when it goes.
        assert_eq!(quota.most(cookie(0), "greedy"), MAX_ROUTES);
        quota.note(cookie(0), "greedy".to_owned(), 0);
        assert_eq!(quota.most(cookie(100), "greedy"), MAX_ROUTES);
    }

    #[test]
    fn together_they_never_have_more_than_the_map() {
        let mut quota = RouteQuota::default();
        let pods = MAX_PODS as usize;
        let namespaces = (0..pods).step_by(64);
        let all = namespaces
            .map(|first| fill(&mut quota, &format!("namespace-{first}"), first..first + 64));
        assert_eq!(all.sum::<usize>(), ROUTE_CAPACITY);
    }
}
