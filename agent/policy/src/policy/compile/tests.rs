//! Rows, listener ports, interfaces and ids of policies.

use sidetrack_common::{
    pod::{IfaceRow, IfaceRule},
    policy::{InboundMode, List, NO_ID},
};

use crate::{
    dialect::Dialect,
    ids::IdMaps,
    policy::{InboundPorts, OutboundRanges, Policy},
};

fn ranges(nets: &[&str]) -> OutboundRanges {
    OutboundRanges::Only(
        nets.iter()
            .map(|net| net.parse().expect("a range"))
            .collect(),
    )
}

#[test]
fn the_default_row() {
    let row = Policy::default().compile().row();
    assert_eq!(
        (row.outbound_port, row.inbound_port, row.tunnel_port),
        (15001, 15006, 15008)
    );
    assert_eq!((row.proxy_uid, row.proxy_gid), (1337, 1337));
    assert_eq!(row.inbound, InboundMode::AllExcept as u8);
    assert_eq!(
        (
            row.outbound_all,
            row.loopback_included,
            row.virtual_interfaces
        ),
        (1, 0, 0)
    );
    assert_eq!(
        (row.loopback_v4, row.loopback_v4_prefix),
        ([127, 0, 0, 1], 32)
    );
    assert_eq!((row.lists, row.dialect), (0, Dialect::Current.bits()));
}

#[test]
fn inbound_modes() {
    for (inbound, mode, listed) in [
        (InboundPorts::None, InboundMode::Off, false),
        (
            InboundPorts::AllExcept(vec![]),
            InboundMode::AllExcept,
            false,
        ),
        (
            InboundPorts::AllExcept(crate::spans(vec![1])),
            InboundMode::AllExcept,
            true,
        ),
        (
            InboundPorts::Only(crate::spans(vec![1])),
            InboundMode::Listed,
            true,
        ),
    ] {
        let case = format!("{inbound:?}");
        let row = Policy {
            inbound,
            ..Policy::default()
        }
        .compile()
        .row();
        assert_eq!(
            (row.inbound, row.has(List::InPort)),
            (mode as u8, listed),
            "{case}"
        );
    }
}

/// One owner fits into the row; two or more are a list.
#[test]
fn owners() {
    for (ids, first, listed) in [
        (vec![], NO_ID, false),
        (vec![5], 5, false),
        (vec![5, 6], 5, true),
        (vec![5, 6, 7], 5, true),
    ] {
        let uids = Policy {
            proxy_uids: ids.clone(),
            ..Policy::default()
        }
        .compile()
        .row();
        assert_eq!(
            (uids.proxy_uid, uids.has(List::MoreProxyUids)),
            (first, listed),
            "{ids:?}"
        );
        assert!(!uids.has(List::MoreProxyGids), "{ids:?}");
        let gids = Policy {
            proxy_gids: ids.clone(),
            ..Policy::default()
        }
        .compile()
        .row();
        assert_eq!(
            (gids.proxy_gid, gids.has(List::MoreProxyGids)),
            (first, listed),
            "{ids:?}"
        );
        assert!(!gids.has(List::MoreProxyUids), "{ids:?}");
    }
}

#[test]
fn loopback_ranges() {
    for (nets, included) in [
        (&["10.0.0.0/8"][..], 0),
        (&["10.0.0.0/8", "127.0.0.0/8"], 1),
        (&["::1/128"], 1),
        (&[], 0),
    ] {
        let policy = Policy {
            outbound: ranges(nets),
            ..Policy::default()
        };
        let row = policy.compile().row();
        assert_eq!(
            (row.loopback_included, row.outbound_all),
            (included, 0),
            "{nets:?}"
        );
        assert_eq!(policy.includes_loopback(), included == 1, "{nets:?}");
    }
    assert!(!Policy::default().includes_loopback());
}

#[test]
fn both_ports_of_the_sidecar_have_listeners() {
    let mut policy = Policy::default();
    assert_eq!(policy.listener_ports(), [15006, 15001]);
    policy.inbound_port = policy.outbound_port;
    assert_eq!(policy.listener_ports(), [15001]);
}

#[test]
fn virtual_interfaces_are_in_the_row() {
    let mut policy = Policy::default();
    assert_eq!(policy.compile().row().virtual_interfaces, 0);
    policy.virtual_interfaces = vec!["tap0".to_owned()];
    assert_eq!(policy.compile().row().virtual_interfaces, 1);
}

#[test]
fn rules_that_capture_loopback_see_the_capture_range() {
    let with = |change: fn(&mut Policy)| {
        let mut policy = Policy::default();
        change(&mut policy);
        policy.rules_ignore_capture_range()
    };
    assert!(with(|_| {}));
    assert!(with(|policy| policy.proxy_uids = vec![]));
    assert!(!with(|policy| policy.dialect = Dialect::V1_1));
    assert!(!with(|policy| {
        policy.outbound = OutboundRanges::Only(vec!["127.0.0.0/8".parse().unwrap()]);
    }));
    assert!(!with(|policy| {
        policy.proxy_uids = vec![];
        policy.proxy_gids = vec![];
    }));
}

#[test]
fn interfaces() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let policy = Policy {
        excluded_interfaces: names(&["eth1", "both", "eth2"]),
        virtual_interfaces: names(&["tap0", "both"]),
        ..Policy::default()
    };
    for (name, rule, position) in [
        ("eth0", IfaceRule::Plain, 0),
        ("eth1", IfaceRule::Excluded, 0),
        ("eth2", IfaceRule::Excluded, 2),
        ("tap0", IfaceRule::Virtual, 0),
        ("both", IfaceRule::Virtual, 1),
    ] {
        assert_eq!(policy.iface(name), IfaceRow::new(rule, position), "{name}");
    }
}

#[test]
fn ids_on_the_node() {
    let maps = IdMaps::parse("0 100000 2000", "0 200000 2000");
    let policy = Policy {
        proxy_uids: vec![1337, 7],
        proxy_gids: vec![1338],
        included_groups: Some(vec![1, 2]),
        excluded_groups: vec![3],
        ..Policy::default()
    };
    let on_node = policy.on_node(&maps).expect("ids that exist");
    assert_eq!(on_node.proxy_uids, [101_337, 100_007]);
    assert_eq!(on_node.proxy_gids, [201_338]);
    assert_eq!(on_node.included_groups, Some(vec![200_001, 200_002]));
    assert_eq!(on_node.excluded_groups, [200_003]);
    for unmapped in [
        Policy {
            proxy_uids: vec![2000],
            ..policy.clone()
        },
        Policy {
            proxy_gids: vec![2000],
            ..policy.clone()
        },
        Policy {
            included_groups: Some(vec![1, 2000]),
            ..policy.clone()
        },
        Policy {
            excluded_groups: vec![2000],
            ..policy.clone()
        },
    ] {
        let error = unmapped.on_node(&maps).unwrap_err().to_string();
        assert!(
            error.contains("2000 does not exist in the pod's user namespace"),
            "{error}"
        );
    }
    assert_eq!(policy.on_node(&IdMaps::of_node()), Ok(policy));
}
