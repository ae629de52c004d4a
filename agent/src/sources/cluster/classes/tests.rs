use serde_json::json;

use super::*;

fn class(name: &str, handler: &str) -> ClassFacts {
    let class = json!({
        "metadata": {"name": name, "resourceVersion": "7"}, "handler": handler,
        "scheduling": {"nodeSelector": {"a": "b"}},
    });
    serde_json::from_value(class).expect("a RuntimeClass")
}

#[test]
fn handlers_follow_the_list_and_what_comes_after_it() {
    let mut classes = Classes::default();
    assert!(!classes.take(Event::Init) && !classes.is_settled());
    assert!(!classes.take(Event::InitApply(class("secure", "kata-qemu"))));
    assert_eq!(classes.handler("secure"), None);
    assert!(classes.take(Event::InitDone) && classes.is_settled());
    assert_eq!(classes.handler("secure"), Some("kata-qemu"));
    assert!(!classes.take(Event::Apply(class("secure", "kata-qemu"))));
    assert!(classes.take(Event::Apply(class("secure", "runc"))));
    assert_eq!(classes.handler("secure"), Some("runc"));
    assert!(classes.take(Event::Delete(class("secure", "runc"))));
    assert!(!classes.take(Event::Delete(class("secure", "runc"))));
    assert_eq!(classes.handler("secure"), None);
    // The same list again.
    assert!(!classes.take(Event::Init) && !classes.take(Event::InitDone));
}

#[test]
fn nothing_waits_for_a_list_that_cannot_be_had() {
    let mut classes = Classes::default();
    assert!(classes.fail() && classes.is_settled());
    assert!(!classes.fail());
    assert_eq!(classes.handler("secure"), None);
}

#[test]
fn classes_have_a_bound() {
    let mut classes = Classes::default();
    for number in 0..=MAX_COUNT {
        classes.take(Event::Apply(class(&format!("c{number}"), "runc")));
    }
    assert_eq!(classes.known.len(), MAX_COUNT);
    assert!(
        classes.take(Event::Apply(class("c0", "kata"))),
        "one of them"
    );
}
