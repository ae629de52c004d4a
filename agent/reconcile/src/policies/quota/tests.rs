use std::collections::BTreeMap;

use proptest::prelude::*;
use sidetrack_common::{
    names::{PORT_RULES_CAPACITY, RANGE_RULES_CAPACITY},
    policy::List,
};
use sidetrack_policy::{
    Policy,
    compiled::{CompiledPolicy, ListSizes, Lists},
};

use super::check;

/// Ports of a short list.
const SHORT: usize = 64;

fn with_ports(count: usize) -> CompiledPolicy {
    let ports = BTreeMap::from([(List::OutPortExcluded, vec![80; count])]);
    let row = Policy::default().compile().row();
    CompiledPolicy::new(
        row,
        Lists {
            ports,
            ..Lists::default()
        },
    )
}

fn ports(ports: usize) -> ListSizes {
    ListSizes {
        ports,
        ..ListSizes::default()
    }
}

fn problem(policy: &CompiledPolicy, namespace: usize, node: usize) -> String {
    check(policy, &ports(namespace), &ports(node))
        .unwrap_err()
        .to_string()
}

#[test]
fn each_quota_is_named_with_the_numbers() {
    let quota = PORT_RULES_CAPACITY / 8;
    assert_eq!(
        problem(&with_ports(quota + 1), 0, 0),
        "the lists of its policy have 16385 ports; a policy may have 16384: shorten the lists"
    );
    assert_eq!(
        problem(&with_ports(1000), quota * 3 - 999, 0),
        "the lists of its policy have 1000 ports; the policies of a namespace may have 49152 on a node, and others \
         of this namespace have 48153: shorten the lists, or let pods of the namespace have the same lists"
    );
    assert_eq!(
        problem(&with_ports(1000), 0, quota * 7 - 999),
        "the lists of its policy have 1000 ports; the policies of a node may have 114688, and others have 113689: \
         shorten the lists, or move pods to other nodes"
    );
    assert_eq!(check(&with_ports(quota), &ports(0), &ports(0)), Ok(()));
    assert_eq!(
        check(
            &with_ports(1000),
            &ports(quota * 3 - 1000),
            &ports(quota * 3)
        ),
        Ok(())
    );
}

#[test]
fn other_kinds_have_room_of_their_own() {
    let node = ListSizes {
        ranges: RANGE_RULES_CAPACITY,
        ..ListSizes::default()
    };
    assert_eq!(check(&with_ports(1000), &node, &node), Ok(()));
}

#[test]
fn short_lists_of_owners_are_shorter() {
    let with_owners = |count: usize| {
        let owners = BTreeMap::from([(List::GroupExcluded, vec![7; count])]);
        let row = Policy::default().compile().row();
        CompiledPolicy::new(
            row,
            Lists {
                owners,
                ..Lists::default()
            },
        )
    };
    let full = ListSizes {
        owners: usize::MAX / 2,
        ..ListSizes::default()
    };
    assert_eq!(check(&with_owners(8), &full, &full), Ok(()));
    assert!(check(&with_owners(9), &full, &full).is_err());
}

proptest! {
    /// Whatever was accepted before, 256 pods with short lists have room.
    #[test]
    fn short_lists_always_have_room(sizes in prop::collection::vec((0..20usize, SHORT + 1..20_000), 0..100)) {
        let mut namespaces = [0; 20];
        let mut node = 0;
        for (namespace, rows) in sizes {
            if check(&with_ports(rows), &ports(namespaces[namespace]), &ports(node)).is_ok() {
                namespaces[namespace] += rows;
                node += rows;
            }
        }
        prop_assert!(node + 256 * SHORT <= PORT_RULES_CAPACITY);
        prop_assert!(check(&with_ports(SHORT), &ports(usize::MAX), &ports(usize::MAX)).is_ok());
    }
}
