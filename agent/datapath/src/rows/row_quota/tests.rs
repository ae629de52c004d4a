use super::*;

const fn cookie(number: usize) -> NetnsCookie {
    NetnsCookie::new(number as u64)
}

/// The quota of each map, and how many rows that has.
fn quotas() -> [(RowQuota, usize); 2] {
    let RowQuotas { routes, ifaces } = RowQuotas::default();
    [(routes, ROUTE_CAPACITY), (ifaces, IFACE_CAPACITY)]
}

/// Gives pods of a namespace as much as they get; answers how many rows that are.
fn fill(quota: &mut RowQuota, namespace: &str, pods: std::ops::Range<usize>) -> usize {
    let one = |number| {
        let rows = quota.most(cookie(number), namespace) + quota.free;
        quota.note(cookie(number), namespace.to_owned(), rows);
        rows
    };
    pods.map(one).sum()
}

#[test]
fn a_namespace_has_its_quota_and_each_pod_its_guarantee() {
    for (mut quota, _) in quotas() {
        let (most, guarantee) = (quota.most, quota.guarantee);
        assert!(quota.pool / 4 >= 2 * most, "two pods of a namespace fit");
        assert_eq!(quota.most(cookie(0), "greedy"), most);
        let all = fill(&mut quota, "greedy", 0..100);
        assert_eq!(all, quota.pool / 4 + 100 * (guarantee + quota.free));
        assert_eq!(quota.most(cookie(100), "greedy"), guarantee);
        assert_eq!(quota.most(cookie(100), "other"), most);
        // What a pod has does not count against itself, and is free when it goes.
        assert_eq!(quota.most(cookie(0), "greedy"), most);
        quota.note(cookie(0), "greedy".to_owned(), 0);
        assert_eq!(quota.most(cookie(100), "greedy"), most);
    }
}

#[test]
fn together_they_never_have_more_than_the_map() {
    for (mut quota, capacity) in quotas() {
        let pods = MAX_PODS as usize;
        let namespaces = (0..pods).step_by(64);
        let all = namespaces
            .map(|first| fill(&mut quota, &format!("namespace-{first}"), first..first + 64));
        assert_eq!(all.sum::<usize>(), capacity);
    }
}
