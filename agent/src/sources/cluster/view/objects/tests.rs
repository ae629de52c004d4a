use proptest::prelude::*;
use serde_json::json;
use sidetrack_policy::facts::{MAX_POD_BYTES, PodFacts, Quota};

use super::{Followed as _, MAX_NAMESPACE, MAX_NODE, Objects, SMALL, Sum};

fn pod(namespace: usize, name: usize, bytes: usize) -> PodFacts {
    let annotations =
        json!({"traffic.sidecar.istio.io/excludeOutboundIPRanges": "x".repeat(bytes)});
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace.to_string(), "name": name.to_string(), "annotations": annotations},
    }))
    .unwrap()
}

fn quota(objects: &mut Objects<PodFacts>, pod: PodFacts) -> Option<Quota> {
    let kept = objects.insert(pod).expect("it is kept");
    kept.excess().map(|excess| excess.quota)
}

#[test]
fn pods_without_number_leave_room_for_those_of_other_namespaces() {
    let mut objects = Objects::default();
    let of_namespace = PodFacts::MAX_COUNT_OF_NAMESPACE;
    for name in 0..of_namespace {
        assert!(objects.insert(pod(0, name, 1)).is_some());
    }
    assert!(objects.insert(pod(0, 0, 2)).is_some(), "it only changes");
    assert_eq!(objects.omitted(), None);
    assert!(objects.insert(pod(0, of_namespace, 1)).is_none());
    let omitted = objects.omitted().cloned();
    assert_eq!(omitted, Some(("0".to_owned(), of_namespace.to_string())));
    assert!(objects.insert(pod(1, 0, 1)).is_some());
    for other in 1..PodFacts::MAX_COUNT / of_namespace {
        for name in 0..of_namespace {
            objects.insert(pod(other, name, 1));
        }
    }
    assert_eq!(objects.values().count(), PodFacts::MAX_COUNT);
    assert!(objects.insert(pod(9, 0, 1)).is_none());
    assert!(!objects.take_has_room());
    let mut ended = pod(0, 0, 1);
    ended.status.phase = Some("Failed".to_owned());
    assert!(objects.insert(ended).is_none());
    assert!(objects.take_has_room());
    assert!(objects.insert(pod(9, 0, 1)).is_some());
}

#[test]
fn a_namespace_and_a_node_have_a_quota() {
    const BYTES: usize = MAX_POD_BYTES - 1000;
    let mut objects = Objects::default();
    let of_namespace = MAX_NAMESPACE / BYTES;
    for name in 0..of_namespace {
        assert_eq!(quota(&mut objects, pod(0, name, BYTES)), None);
    }
    let beyond = || pod(0, of_namespace, BYTES);
    assert_eq!(
        quota(&mut objects, beyond()),
        Some(Quota::Namespace(MAX_NAMESPACE))
    );
    for namespace in 1..MAX_NODE / MAX_NAMESPACE {
        for name in 0..of_namespace {
            assert_eq!(quota(&mut objects, pod(namespace, name, BYTES)), None);
        }
    }
    assert_eq!(
        quota(&mut objects, pod(9, 1, BYTES)),
        Some(Quota::Node(MAX_NODE))
    );
    assert_eq!(
        quota(&mut objects, pod(9, 2, SMALL / 2)),
        None,
        "small ones"
    );
    // A pod whose bytes are counted keeps them until it goes.
    assert_eq!(quota(&mut objects, pod(0, 0, BYTES)), None);
    objects.take_has_room();
    objects.remove(&("0".to_owned(), "0".to_owned()));
    assert!(objects.take_has_room() && !objects.take_has_room());
    assert_eq!(quota(&mut objects, beyond()), None);
}

proptest! {
    /// Sums are those of what is there, whatever comes and goes.
    #[test]
    fn sums_are_right(steps in prop::collection::vec((0..3usize, 0..5usize, 0..MAX_POD_BYTES * 2, any::<bool>()), 0..60)) {
        let mut objects = Objects::default();
        for (namespace, name, bytes, is_there) in steps {
            if is_there {
                objects.insert(pod(namespace, name, bytes));
            } else {
                objects.remove(&(namespace.to_string(), name.to_string()));
            }
            let sizes = objects.values().map(|pod| super::Followed::size(&**pod));
            prop_assert_eq!(objects.node.bytes, sizes.sum::<usize>());
            prop_assert_eq!(objects.node.objects, objects.values().count());
            let sum = |of: fn(&Sum) -> usize| objects.by_namespace.values().map(of).sum::<usize>();
            prop_assert_eq!(objects.node.bytes, sum(|sum| sum.bytes));
            prop_assert_eq!(objects.node.objects, sum(|sum| sum.objects));
            let reduced = objects.values().filter(|pod| super::Followed::is_reduced(&***pod)).count();
            prop_assert_eq!(objects.reduced, reduced);
        }
    }
}
