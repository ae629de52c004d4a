//! Sharing, retiring and removing policies.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use sidetrack_common::ids::PolicyId;
use sidetrack_policy::{Policy, compiled::CompiledPolicy, spans};

use super::{EarlierPolicy, GRACE, Policies, Room};

fn policy(port: u16) -> CompiledPolicy {
    Policy {
        outbound_port: port,
        ..Policy::default()
    }
    .compile()
}

/// The id of a policy that one more pod uses.
fn reuse(policies: &mut Policies, policy: &CompiledPolicy) -> Option<PolicyId> {
    policies.reuse(policy).map(|(id, _)| id)
}

/// Writes a policy for one pod.
fn write(policies: &mut Policies, policy: &CompiledPolicy) -> PolicyId {
    assert_eq!(reuse(policies, policy), None);
    let id = policies.next_id();
    policies.written(&Arc::new(policy.clone()), id);
    id
}

fn used(policies: &Policies) -> Vec<PolicyId> {
    policies.in_use().map(|(id, _)| id).collect()
}

#[test]
fn ids_start_above_the_highest_and_are_used_once() {
    let mut fresh = Policies::after(None, Vec::new());
    assert_eq!(fresh.next_id(), PolicyId::new(1));
    let mut policies = Policies::after(Some(PolicyId::new(7)), Vec::new());
    let ids: Vec<u32> = (0..3).map(|_| policies.next_id().get()).collect();
    assert_eq!(ids, [8, 9, 10]);
}

#[test]
fn equal_policies_have_one_id_until_the_last_pod_departs() {
    let now = Instant::now();
    let mut policies = Policies::after(None, Vec::new());
    let id = write(&mut policies, &policy(1));
    let other = write(&mut policies, &policy(2));
    assert_ne!(id, other);
    assert_eq!(reuse(&mut policies, &policy(1)), Some(id));
    policies.release(&policy(1), now);
    assert!(used(&policies).contains(&id));
    policies.release(&policy(1), now);
    assert_eq!(used(&policies), [other]);
    // Its rows are there, and are not swept.
    assert_eq!(policies.ids(), BTreeSet::from([id, other]));
    // A policy that no pod uses needs no release.
    policies.release(&policy(3), now);
    assert_eq!(used(&policies), [other]);
}

#[test]
fn a_retired_policy_goes_after_its_grace() {
    let now = Instant::now();
    let mut policies = Policies::after(None, Vec::new());
    let id = write(&mut policies, &policy(1));
    policies.release(&policy(1), now);
    let early = now + GRACE - Duration::from_nanos(1);
    assert!(policies.take_due(early).is_none() && !policies.has_due(early));
    let due = policies.take_due(now + GRACE);
    assert_eq!(due.iter().map(|it| it.id).collect::<Vec<_>>(), [id]);
    assert_eq!(*due.unwrap().policy, policy(1));
    assert!(policies.ids().is_empty());
    assert!(policies.take_due(now + GRACE * 2).is_none());
}

#[test]
fn a_retired_policy_is_used_again_under_its_id() {
    let now = Instant::now();
    let mut policies = Policies::after(None, Vec::new());
    let id = write(&mut policies, &policy(1));
    let other = write(&mut policies, &policy(2));
    policies.release(&policy(2), now);
    policies.release(&policy(1), now);
    assert_eq!(reuse(&mut policies, &policy(1)), Some(id));
    let due = policies.take_due(now + GRACE);
    assert_eq!(due.iter().map(|it| it.id).collect::<Vec<_>>(), [other]);
    // It is used by one pod again.
    policies.release(&policy(1), now);
    assert!(used(&policies).is_empty());
}

#[test]
fn a_policy_that_could_not_be_removed_is_not_used_again() {
    let now = Instant::now();
    let mut policies = Policies::after(None, Vec::new());
    let id = write(&mut policies, &policy(1));
    policies.release(&policy(1), now);
    let now = now + GRACE;
    let due = policies.take_due(now).unwrap();
    policies.restore(due, now);
    assert!(!policies.has_due(now), "not at once");
    assert_eq!(reuse(&mut policies, &policy(1)), None);
    assert_eq!(policies.ids(), BTreeSet::from([id]));
    let again = policies.take_due(now + GRACE);
    assert_eq!(again.iter().map(|it| it.id).collect::<Vec<_>>(), [id]);
}

#[test]
fn a_policy_that_was_not_written_whole_is_removed_and_not_used() {
    let now = Instant::now();
    let mut policies = Policies::after(None, Vec::new());
    let id = policies.next_id();
    policies.not_written(Arc::new(policy(1)), id, now);
    assert_eq!(reuse(&mut policies, &policy(1)), None);
    assert_eq!(policies.ids(), BTreeSet::from([id]));
    assert!(policies.take_due(now + GRACE).is_some());
    assert!(!policies.has_due(now + GRACE));
    assert_ne!(policies.next_id(), id);
}

fn earlier(id: u32, policy: &CompiledPolicy) -> EarlierPolicy {
    EarlierPolicy {
        id: PolicyId::new(id),
        row: policy.row(),
        lists: policy.list_rows(),
    }
}

#[test]
fn a_policy_of_an_earlier_agent_keeps_its_id() {
    let now = Instant::now();
    let earlier = vec![earlier(3, &policy(1)), earlier(4, &policy(2))];
    let mut policies = Policies::after(Some(PolicyId::new(4)), earlier.clone());
    // Nothing is this agent's before a pod uses it.
    assert!(policies.ids().is_empty());
    assert_eq!(reuse(&mut policies, &policy(1)), Some(PolicyId::new(3)));
    assert_eq!(reuse(&mut policies, &policy(1)), Some(PolicyId::new(3)));
    assert_eq!(reuse(&mut policies, &policy(5)), None);
    assert_eq!(policies.ids(), BTreeSet::from([PolicyId::new(3)]));
    // Pods' rows of the earlier agent may name it: it is never removed as this agent's own.
    assert!(!policies.release(&policy(1), now));
    assert!(policies.release(&policy(1), now));
    assert!(policies.take_due(now + GRACE).is_none());
    assert_eq!(reuse(&mut policies, &policy(1)), Some(PolicyId::new(3)));
    // What was swept is gone, what is still named stays to be used.
    policies.swept(earlier[..1].to_vec());
    assert!(!policies.has_earlier());
    assert_eq!(reuse(&mut policies, &policy(2)), None);
    policies.swept(earlier);
    assert_eq!(reuse(&mut policies, &policy(2)), Some(PolicyId::new(4)));
}

#[test]
fn a_policy_with_other_lists_is_another_one() {
    let with = |ports: &[u16]| {
        Policy {
            excluded_outbound_ports: spans(ports.iter().copied()),
            ..Policy::default()
        }
        .compile()
    };
    let mut policies = Policies::after(None, vec![earlier(3, &with(&[80, 81]))]);
    for other in [with(&[81, 80]), with(&[80]), with(&[80, 81, 82])] {
        assert_eq!(reuse(&mut policies, &other), None);
    }
    // The kernel has one row for a port that is listed twice.
    assert_eq!(
        reuse(&mut policies, &with(&[80, 81, 80])),
        Some(PolicyId::new(3))
    );
}

#[test]
fn pods_use_one_copy_of_a_policy() {
    let now = Instant::now();
    let mut policies = Policies::after(None, Vec::new());
    write(&mut policies, &policy(1));
    let copy = |policies: &mut Policies| policies.reuse(&policy(1)).unwrap().1;
    let (one, other) = (copy(&mut policies), copy(&mut policies));
    assert!(Arc::ptr_eq(&one, &other));
    for _ in 0..3 {
        policies.release(&policy(1), now);
    }
    assert!(Arc::ptr_eq(&one, &copy(&mut policies)), "used again");
}

/// A policy whose lists have this many ports from a first one on.
fn with_ports(first: u16, count: u16) -> CompiledPolicy {
    Policy {
        excluded_outbound_ports: spans(first..first + count),
        ..Policy::default()
    }
    .compile()
}

#[test]
fn each_namespace_has_a_quota_of_its_own() {
    let mut policies = Policies::after(None, Vec::new());
    let mut neighbors = BTreeSet::new();
    let quota = 16_384;
    for first in 0..3 {
        let big = with_ports(first + 1, quota);
        assert_eq!(policies.check(&big, &neighbors, None), Ok(Room::Now));
        neighbors.insert(write(&mut policies, &big));
    }
    let fourth = with_ports(9, quota);
    assert!(policies.check(&fourth, &neighbors, None).is_err());
    assert_eq!(
        policies.check(&fourth, &BTreeSet::new(), None),
        Ok(Room::Now),
        "of another namespace"
    );
    let first = with_ports(1, quota);
    assert_eq!(
        policies.check(&first, &neighbors, None),
        Ok(Room::Now),
        "it needs no rows"
    );
    // A pod that replaces its own policy gives its rows up.
    let own = neighbors.pop_first();
    assert_eq!(policies.check(&fourth, &neighbors, own), Ok(Room::Now));
}

#[test]
fn rows_that_are_not_removed_yet_count_for_the_node() {
    let now = Instant::now();
    let mut policies = Policies::after(None, Vec::new());
    let namespace = BTreeSet::new();
    let quota = 16_384;
    for first in 1..=7 {
        let big = with_ports(first, quota);
        assert_eq!(policies.check(&big, &namespace, None), Ok(Room::Now));
        write(&mut policies, &big);
        policies.release(&big, now);
    }
    let next = with_ports(9, quota);
    assert_eq!(policies.check(&next, &namespace, None), Ok(Room::Soon));
    policies.take_due(now + GRACE);
    assert_eq!(policies.check(&next, &namespace, None), Ok(Room::Now));
}
