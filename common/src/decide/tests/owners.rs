//! Rules about the process that created the socket.

use super::{ANY, APP, Fixture, POD, VIP, default_policy, dial, expect, with};
use crate::{
    decide::{Owner, outbound},
    policy::{List, NO_ID, Policy},
    rule::Rule,
};

#[test]
fn owner_by_group() {
    let gid_only = Owner {
        uid: 1000,
        gid: 1337,
    };
    expect(gid_only, ANY, VIP, 80, 0, Rule::ProxyGid);
    expect(gid_only, ANY, POD, 80, 0, Rule::NotProxyUidLocal);
    let policy = Policy {
        proxy_uid: NO_ID,
        ..default_policy()
    };
    let decide = |owner| outbound(&policy, &dial(owner, ANY, POD, 80), &Fixture::default());
    assert_eq!(decide(gid_only).rule, Rule::ProxyGidLocal);
    assert_eq!(decide(APP).rule, Rule::NotProxyGidLocal);
}

#[test]
fn sockets_without_an_owner_count_as_the_apps() {
    let kernel = Owner {
        uid: NO_ID,
        gid: NO_ID,
    };
    expect(kernel, ANY, VIP, 80, 15001, Rule::AllOutbound);
    let policy = Policy {
        proxy_uid: NO_ID,
        proxy_gid: NO_ID,
        ..default_policy()
    };
    let decision = outbound(&policy, &dial(kernel, ANY, VIP, 80), &Fixture::default());
    assert_eq!(decision.rule, Rule::AllOutbound);
}

#[test]
fn owner_groups() {
    let (policy, tables) = with(
        List::GroupExcluded,
        Fixture {
            owners: [((List::GroupExcluded as u16, 1000), 0)].into(),
            ..Fixture::default()
        },
        |_| {},
    );
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!(decision.rule, Rule::GroupExcluded);

    let (policy, tables) = with(List::GroupIncluded, Fixture::default(), |_| {});
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!(decision.rule, Rule::GroupNotIncluded);
}

#[test]
fn further_proxy_owners_count_off_the_pod_only() {
    let tables = Fixture {
        owners: [
            ((List::MoreProxyUids as u16, 1338), 1),
            ((List::MoreProxyGids as u16, 1339), 1),
        ]
        .into(),
        ..Fixture::default()
    };
    let mut policy = default_policy();
    policy.lists = List::MoreProxyUids.bit() | List::MoreProxyGids.bit();
    let second = Owner {
        uid: 1338,
        gid: 1000,
    };
    let decision = outbound(&policy, &dial(second, ANY, VIP, 80), &tables);
    assert_eq!((decision.rule, decision.index), (Rule::ProxyUid, 1));
    let decision = outbound(&policy, &dial(second, ANY, POD, 80), &tables);
    assert_eq!(decision.rule, Rule::NotProxyUidLocal);
    let by_group = Owner {
        uid: 1000,
        gid: 1339,
    };
    let decision = outbound(&policy, &dial(by_group, ANY, VIP, 80), &tables);
    assert_eq!((decision.rule, decision.index), (Rule::ProxyGid, 1));
}
