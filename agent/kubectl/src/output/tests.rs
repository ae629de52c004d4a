use super::section;

#[test]
fn commands_of_agents_are_those_of_the_plugin() {
    let problem = "pod a/b: it hangs: see `sidetrack why a/b`".to_owned();
    let shown = "\nproblems:\n  pod a/b: it hangs: see `kubectl sidetrack why a/b`\n";
    assert_eq!(section("problems", &[problem]), shown);
}
