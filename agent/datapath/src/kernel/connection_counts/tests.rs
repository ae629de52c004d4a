use sidetrack_common::{
    addr::Family,
    count::{ANY_POLICY, RuleCounts},
    rule::Rule,
};

use super::by_rule;

#[test]
fn every_rule_and_family_has_a_counter_of_its_own() {
    for family in [Family::V4, Family::V6] {
        for rule in Rule::ALL {
            let mut counts = RuleCounts::NONE;
            counts.counts[RuleCounts::index(family, *rule)] = 7;
            let found = by_rule(4711, &counts);
            let [(key, 7)] = found[..] else {
                panic!("{found:?}");
            };
            assert_eq!((key.netns, key.policy), (4711, ANY_POLICY));
            assert_eq!((key.family, key.rule), (family as u32, *rule as u32));
        }
    }
}
