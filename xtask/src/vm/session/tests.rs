use super::Session;

fn parse(lines: &[&str]) -> Session {
    let mut session = Session::default();
    for line in lines {
        session.read_line(line);
    }
    session
}

const FINE: &str =
    r#"{"kernel":"6.1.0","checks":[{"facility":"sockops","ok":true,"optional":false}]}"#;
const OLD: &str =
    r#"{"kernel":"6.1.0","checks":[{"facility":"sockops","ok":false,"optional":false}]}"#;

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
        "meshes::a: skipped, needs Envoy",
        r#"{ "type": "test", "name": "meshes::a", "event": "ok" }"#,
        r#"{ "type": "test", "event": "started", "name": "meshes::b" }"#,
        r#"{ "type": "test", "name": "meshes::b", "event": "ok" }"#,
        "@ended 0",
    ]);
    let group = &session.groups["meshes"];
    assert_eq!((group.passed, group.skipped), (2, 1));
    assert_eq!(session.skipped["needs Envoy"], 1);
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
    let refused = |agent, started, left: &'static str| {
        let mut lines = vec!["@doctor", OLD, "@agent", agent, started, "@remains"];
        lines.extend((!left.is_empty()).then_some(left));
        lines.push("@ended 0");
        parse(&lines).problems()
    };
    assert_eq!(
        refused("lacks sockops", "@started 1", ""),
        Vec::<String>::new()
    );
    for wrong in [
        refused("lacks sockops", "@started 0", ""),
        refused("no idea", "@started 1", ""),
        refused("lacks sockops", "@started 1", "a link"),
    ] {
        assert_eq!(wrong.len(), 1, "{wrong:?}");
    }
}

#[test]
fn a_kernel_with_every_facility_loads_the_programs() {
    let own = OLD.replace("sockops", "sidetrack's own programs");
    let agent = "load sidetrack's own programs";
    let session = parse(&["@doctor", &own, "@agent", agent, "@started 1", "@ended 0"]);
    assert_eq!(session.problems().len(), 1);
}

#[test]
fn the_agent_starts_where_doctor_says_so() {
    let accepted = |started| {
        let lines = ["@doctor", FINE, "@agent", "no", started, "@remains"];
        parse(&[&lines[..], &["@tests", "@ended 0"]].concat())
    };
    let session = accepted("@started 0");
    assert_eq!(session.kernel, "6.1.0");
    assert_eq!(session.problems(), Vec::<String>::new());
    assert_eq!(accepted("@started 1").problems().len(), 1);
}
