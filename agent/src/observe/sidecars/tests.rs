use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use sidetrack_common::conn::{ListenerKey, ListenerQueue};
use sidetrack_live::Queue;

use super::{by_pod, replaced};

fn row(netns: u64, socket: u64, waiting: u32, oldest_us: u64) -> ListenerQueue {
    let key = ListenerKey {
        netns,
        family: 4,
        port: 15001,
        slot: 0,
    };
    ListenerQueue {
        key,
        socket,
        oldest_us,
        waiting,
        limit: 128,
    }
}

#[test]
fn sockets_of_a_pod_add_up() {
    let pods = by_pod(&[
        row(1, 10, 129, 2_000_000),
        row(1, 11, 5, 7_000_000),
        row(2, 20, 128, 0),
    ]);
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let queue = |waiting, oldest, is_full| Queue {
        waiting,
        oldest,
        is_full,
    };
    assert_eq!(pods[&1], queue(134, seconds(7), true));
    // One more than the limit is full.
    assert_eq!(pods[&2], queue(128, None, false));
    assert_eq!(pods.len(), 2);
}

#[test]
fn a_socket_of_two_families_counts_once() {
    let mut v6 = row(1, 10, 3, 4_000_000);
    v6.key.family = 6;
    assert_eq!(by_pod(&[row(1, 10, 3, 4_000_000), v6])[&1].waiting, 3);
}

#[test]
fn a_sidecar_was_replaced_if_no_socket_is_the_same() {
    type Sockets = HashMap<u64, HashSet<u64>>;
    let of =
        |sockets: &[u64]| -> Sockets { HashMap::from([(1, sockets.iter().copied().collect())]) };
    let none = Sockets::new();
    let found = |before: &Sockets, now: &Sockets| !replaced(before, now).is_empty();
    assert!(found(&of(&[10, 11]), &of(&[12, 13])));
    assert_eq!(replaced(&of(&[10]), &of(&[12])), HashSet::from([1]));
    // A listener of several was replaced, or added.
    assert!(!found(&of(&[10, 11]), &of(&[11, 12])));
    assert!(!found(&of(&[10]), &of(&[10, 11])));
    // It has begun to listen, or does not any more.
    assert!(!found(&none, &of(&[10])));
    assert!(!found(&of(&[10]), &none));
}
