use sidetrack_common::pod::{IfaceRow, IfaceRule};
use sidetrack_policy::Policy;

use super::{MAX_IFACES, note, of_policy};
use crate::netns::routes::Snapshot;

#[test]
fn a_pod_has_a_quota_and_the_oldest_interfaces_come_first() {
    let policy = Policy {
        excluded_interfaces: vec!["net+".to_owned()],
        ..Policy::default()
    };
    let mut snapshot = Snapshot::default();
    for index in 0..MAX_IFACES as u32 {
        snapshot.links.insert(index, format!("net{index}"));
    }
    snapshot.links.insert(9_999, "eth0".to_owned());
    let (rows, omitted) = of_policy(&snapshot, &policy, MAX_IFACES);
    assert_eq!((rows.len(), omitted), (MAX_IFACES, 0));
    assert_eq!(rows[&7], IfaceRow::new(IfaceRule::Excluded, 0));
    assert_eq!(note(omitted, MAX_IFACES), None);

    snapshot.links.insert(5_000, "net5000".to_owned());
    snapshot.links.insert(5_001, "net5001".to_owned());
    let (rows, omitted) = of_policy(&snapshot, &policy, MAX_IFACES);
    assert_eq!((rows.len(), omitted), (MAX_IFACES, 2));
    assert!(!rows.contains_key(&5_000) && rows.contains_key(&0));
    assert!(note(omitted, MAX_IFACES).is_some_and(|note| note.contains("2 of them")));
}
