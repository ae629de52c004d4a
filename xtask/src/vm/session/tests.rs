use super::Session;

fn parse(lines: &[&str]) -> Session {
    let mut session = Session::new("6.1");
    for line in lines {
        session.read_line(line);
    }
    session
}

const FINE: &str = r#"{"checks":[{"facility":"sockops","ok":true,"optional":false}]}"#;
const OLD: &str = r#"{"checks":[{"facility":"sockops","ok":false,"optional":false}]}"#;

#[test]
fn all_passed() {
    let session = parse(&[
        "@doctor",
        FINE,
        "@tests",
        r#"{ "type": "suite", "event": "started", "test_count": 1 }"#,
        r#"{ "type": "test", "event": "started", "name": "inbound::a" }"#,
        "output of a test",
        r#"{ "type": "test", "name": "inbound::a", "event": "ok" }"#,
        "@ended 0",
    ]);
    assert_eq!(session.problems(), Vec::<String>::new());
    assert_eq!(session.groups["inbound"].passed, 1);
}

#[test]
fn skipped_tests_are_counted() {
    let session = parse(&[
        "@doctor",
        FINE,
        "@tests",
        r#"{ "type": "test", "event": "started", "name": "meshes::a" }"#,
        "meshes: skipped, this machine has no Envoy",
        r#"{ "type": "test", "name": "meshes::a", "event": "ok" }"#,
        r#"{ "type": "test", "event": "started", "name": "meshes::b" }"#,
        r#"{ "type": "test", "name": "meshes::b", "event": "ok" }"#,
        "@ended 0",
    ]);
    let group = &session.groups["meshes"];
    assert_eq!((group.passed, group.skipped), (2, 1));
}

#[test]
fn a_failure_is_reported_with_its_output() {
    let session = parse(&[
        "@doctor",
        FINE,
        "@tests",
        r#"{ "type": "test", "name": "inbound::a", "event": "failed", "stdout": "Error: \"no\"" }"#,
        "@ended 1",
    ]);
    assert_eq!(session.problems(), ["inbound::a: Error: \"no\""]);
}

#[test]
fn a_guest_that_ends_early_is_a_problem() {
    let session = parse(&[
        "@doctor",
        FINE,
        "@tests",
        r#"{ "type": "test", "event": "started", "name": "inbound::a" }"#,
    ]);
    let problems = session.problems().join("\n");
    assert!(problems.contains("during inbound::a"), "{problems}");
    assert!(!parse(&[]).problems().is_empty());
}

#[test]
fn a_refusal_must_be_complete() {
    let refused = parse(&[
        "@doctor",
        OLD,
        "@agent",
        "lacks sockops",
        "@remains",
        "@ended 1",
    ]);
    assert_eq!(refused.problems(), Vec::<String>::new());
    for wrong in [
        [
            "@doctor",
            OLD,
            "@agent",
            "lacks sockops",
            "@remains",
            "@ended 0",
        ],
        ["@doctor", OLD, "@agent", "no idea", "@remains", "@ended 1"],
        [
            "@doctor",
            OLD,
            "@agent",
            "lacks sockops",
            "@remains",
            "a link",
        ],
    ] {
        assert!(!parse(&wrong).problems().is_empty(), "{wrong:?}");
    }
}
