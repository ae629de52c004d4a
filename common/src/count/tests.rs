use super::RuleCounts;
use crate::{addr::Family, rule::Rule};

#[test]
fn every_family_and_rule_has_a_place_of_its_own() {
    let mut counts = RuleCounts::NONE.counts;
    for family in [Family::V4, Family::V6] {
        for rule in Rule::ALL {
            counts[RuleCounts::index(family, *rule)] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count <= 1));
    let v6 = RuleCounts::index(Family::V6, Rule::AllOutbound);
    let v4 = RuleCounts::index(Family::V4, Rule::AllOutbound);
    assert_eq!(
        (v4, v6),
        (Rule::AllOutbound as usize, counts.len() / 2 + v4)
    );
}
