use kube::runtime::watcher::Event;
use sidetrack_policy::facts::PodFacts;

use super::Collection;

fn pod(uid: &str, version: &str, label: &str) -> PodFacts {
    serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": "a", "namespace": "b", "uid": uid, "resourceVersion": version,
            "labels": {"sidetrack.dev/interception": label, "app": "x"},
        },
        "spec": {"containers": [{"name": "app", "image": "i", "tty": true}], "nodeName": "n"},
    }))
    .unwrap()
}

fn label(pods: &Collection<PodFacts>) -> Option<String> {
    let pod = pods.known.as_ref()?.values().next()?;
    pod.meta.labels.interception.clone()
}

#[test]
fn events_out_of_order_and_twice() {
    let mut pods = Collection::default();
    assert!(!pods.take(Event::Init));
    assert!(!pods.take(Event::InitApply(pod("1", "9", "old"))));
    assert!(pods.known.is_none(), "not before the list is complete");
    assert!(pods.take(Event::InitDone));
    assert!(pods.take(Event::Apply(pod("1", "11", "new"))));
    assert!(!pods.take(Event::Apply(pod("1", "11", "new"))), "twice");
    assert!(!pods.take(Event::Apply(pod("1", "10", "old"))), "late");
    assert_eq!(label(&pods).as_deref(), Some("new"));
    // Deleted and created anew while no watch was open; the deletion comes last.
    assert!(pods.take(Event::Apply(pod("2", "5", "other"))));
    assert!(!pods.take(Event::Delete(pod("1", "4", "new"))));
    assert_eq!(label(&pods).as_deref(), Some("other"));
    assert!(pods.take(Event::Delete(pod("2", "6", "other"))));
    // One that has ended is as good as deleted.
    let mut ended = pod("2", "6", "other");
    ended.status.phase = Some("Succeeded".to_owned());
    assert!(pods.take(Event::Apply(pod("2", "5", "other"))));
    assert!(pods.take(Event::Apply(ended.clone())));
    assert!(!pods.take(Event::Apply(ended)));
    assert_eq!(label(&pods), None);
    // A list that does not have it any more.
    pods.take(Event::Apply(pod("3", "7", "x")));
    pods.take(Event::Init);
    assert_eq!(label(&pods).as_deref(), Some("x"), "it stays meanwhile");
    assert!(pods.take(Event::InitDone));
    assert_eq!(label(&pods), None);
}
