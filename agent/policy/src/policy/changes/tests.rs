use crate::policy::{InboundPorts, Mode, Policy};

#[test]
fn equal_policies_have_no_changes() {
    assert!(Policy::default().changes_to(&Policy::default()).is_empty());
}

#[test]
fn lists_say_what_was_added_and_removed() {
    let before = Policy {
        excluded_outbound_ports: crate::spans(vec![3306, 5432]),
        ..Policy::default()
    };
    let after = Policy {
        excluded_outbound_ports: crate::spans(vec![3306, 6379, 27017]),
        ..Policy::default()
    };
    assert_eq!(
        before.changes_to(&after),
        ["excluded outbound ports: added 6379, 27017, removed 5432"]
    );
    let reversed = Policy {
        excluded_outbound_ports: crate::spans(vec![5432, 3306]),
        ..Policy::default()
    };
    assert_eq!(
        before.changes_to(&reversed),
        ["excluded outbound ports: another order"]
    );
}

#[test]
fn long_lists_are_counted() {
    let after = Policy {
        excluded_outbound_ports: crate::spans(1..=1000),
        ..Policy::default()
    };
    assert_eq!(
        Policy::default().changes_to(&after),
        ["excluded outbound ports: added 1, 2, 3, 4, 5 and 995 more"]
    );
}

#[test]
fn other_fields_say_what_they_were_and_are() {
    let after = Policy {
        mode: Mode::Tproxy,
        inbound: InboundPorts::Only(crate::spans(vec![80])),
        included_groups: Some(vec![7]),
        ..Policy::default()
    };
    assert_eq!(
        Policy::default().changes_to(&after),
        [
            r#"inbound: {"capture":"allexcept","ports":[]} -> {"capture":"only","ports":[80]}"#,
            "included groups: all -> [7]",
            "mode: REDIRECT -> TPROXY",
        ]
    );
}
