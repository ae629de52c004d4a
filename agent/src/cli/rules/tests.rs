use std::collections::BTreeMap;

use sidetrack_common::{addr::Family, rule::Rule};
use sidetrack_policy::{Policy, rules};

use super::{Counted, Scope, rows};

#[test]
fn what_has_no_line_is_shown_and_earlier_policies_stay_apart() {
    let lines = rules::all(&Policy::default(), Family::V4);
    let counted = Counted {
        now: [
            ((Rule::AllOutbound as u32, 0), 5),
            ((Rule::NoRoute as u32, 0), 2),
            ((Rule::SidecarRefused as u32, 0), 1),
        ]
        .into(),
        earlier: [(Rule::AllOutbound as u32, 7)].into(),
        any_line: BTreeMap::new(),
    };
    let rows = rows(&lines, Some(counted));
    let of = |scope: Scope| -> Vec<_> {
        let rows = rows.iter().filter(|row| row.scope == scope);
        rows.filter(|row| row.connections > Some(0))
            .map(|row| (row.name.unwrap_or_default(), row.connections))
            .collect()
    };
    assert_eq!(of(Scope::Line), [("out-all", Some(5))]);
    assert_eq!(
        of(Scope::Reason),
        [("no-route", Some(2)), ("sidecar-refused", Some(1))]
    );
    assert_eq!(of(Scope::Earlier), [("out-all", Some(7))]);
}

#[test]
fn lines_of_a_rule_that_is_counted_alone_have_at_least_their_counts() {
    let lines = rules::all(&Policy::default(), Family::V4);
    let counted = Counted {
        now: [((Rule::AllOutbound as u32, 0), 5)].into(),
        any_line: [(Rule::AllOutbound as u32, 3)].into(),
        ..Counted::default()
    };
    let rows = rows(&lines, Some(counted));
    let found: Vec<_> = rows
        .iter()
        .filter(|row| row.name == Some("out-all"))
        .map(|row| (row.scope, row.connections, row.at_least))
        .collect();
    let expected = [
        (Scope::Line, Some(5), true),
        (Scope::AnyLine, Some(3), false),
    ];
    assert_eq!(found, expected);
    assert!(
        !rows
            .iter()
            .any(|row| row.name == Some("proxy-uid") && row.at_least)
    );
}

#[test]
fn nothing_is_counted_for_a_manifest() {
    let lines = rules::all(&Policy::default(), Family::V4);
    let rows = rows(&lines, None);
    assert_eq!(rows.len(), lines.len());
    assert!(rows.iter().all(|row| row.connections.is_none()));
}
