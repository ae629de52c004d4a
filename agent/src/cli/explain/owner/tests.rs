use sidetrack_policy::{Inputs, Policy};

use super::Owner;

fn policy(change: impl FnOnce(&mut Policy)) -> Policy {
    let mut policy = Policy::of_inputs(&Inputs::default()).expect("Istio's defaults");
    change(&mut policy);
    policy
}

#[test]
fn an_application_is_assumed() {
    let numbers = |policy: &Policy, uid, gid| {
        let owner = Owner::new(policy, uid, gid);
        (owner.uid, owner.gid, owner.assumed)
    };
    let usual = policy(|_| {});
    assert_eq!(numbers(&usual, None, None), (1000, 1000, true));
    assert_eq!(numbers(&usual, Some(0), None), (0, 1000, true));
    assert_eq!(numbers(&usual, Some(0), Some(0)), (0, 0, false));
    assert_eq!(numbers(&usual, Some(1337), None), (1337, 1337, true));
    let used = policy(|policy| {
        policy.proxy_uids = vec![1000];
        policy.excluded_groups = vec![1000, 1001];
    });
    assert_eq!(numbers(&used, None, None), (1001, 1002, true));
    let groups = policy(|policy| policy.included_groups = Some(vec![1337, 7]));
    assert_eq!(numbers(&groups, None, None), (1000, 7, true));
}
