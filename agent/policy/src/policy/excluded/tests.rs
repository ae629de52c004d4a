use super::*;

#[test]
fn a_rule_of_linkerd_has_at_most_fifteen_slots() {
    let policy = Policy {
        dialect: Dialect::Linkerd,
        ..Policy::default()
    };
    let ports: Vec<Span> = (1..=14)
        .map(Span::one)
        .chain(["20-30".parse().expect("a span"), Span::one(40)])
        .collect();
    let rules = policy.port_rules(&ports);
    let sizes: Vec<usize> = rules.iter().map(Vec::len).collect();
    // The range takes two slots, and one remains.
    assert_eq!(sizes, [14, 2]);
    assert_eq!(rules.concat(), ports);
}
