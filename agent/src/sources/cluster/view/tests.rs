use kube::runtime::watcher::Event;
use serde_json::json;
use sidetrack_policy::facts::{ObjectFacts, PodFacts};

use super::{Collection, View};

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

/// Nothing is listed before runtime classes are known or have failed; then pods have the handler of theirs.
#[test]
fn handlers_of_runtime_classes() {
    let class = |handler: &str| -> ObjectFacts {
        let class = json!({"metadata": {"name": "secure"}, "handler": handler});
        serde_json::from_value(class).expect("a RuntimeClass")
    };
    let mut view = View::default();
    let mut secure = pod("1", "9", "enabled");
    secure.spec.runtime_class_name = Some("secure".to_owned());
    view.pods.take(Event::Init);
    view.pods.take(Event::InitApply(secure));
    view.pods.take(Event::InitDone);
    view.namespaces.take(Event::InitDone);
    let handler = |view: &View| {
        let listing = view.listing(true)?;
        Some(listing.pods[0].runtime_handler.clone())
    };
    assert_eq!(handler(&view), None);
    view.classes_failed = true;
    assert_eq!(handler(&view), Some(None), "the name alone decides");
    view.classes_failed = false;
    view.classes.take(Event::InitApply(class("kata")));
    assert_eq!(handler(&view), None);
    assert!(view.classes.take(Event::InitDone));
    assert_eq!(handler(&view), Some(Some("kata".to_owned())));
    assert!(view.classes.take(Event::Apply(class("crun"))));
    assert!(!view.classes.take(Event::Apply(class("crun"))));
    assert_eq!(handler(&view), Some(Some("crun".to_owned())));
}
