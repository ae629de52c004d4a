use super::{Outcome, chosen};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn crates_come_first_and_options_follow() {
    let line = words("common sidetrack-policy --file common/src/addr.rs");
    let (subjects, options) = chosen(&line).expect("both exist");
    assert_eq!(subjects, ["common", "policy"]);
    assert_eq!(options, ["--file", "common/src/addr.rs"]);
    let line = words("policy -- --list");
    assert_eq!(chosen(&line).expect("it exists").1, ["--list"]);
    assert_eq!(chosen(&[]).expect("all").0.len(), 3);
    assert!(chosen(&words("agent")).is_err());
}

#[test]
fn the_threshold_counts_viable_mutants_alone() {
    let outcome = Outcome {
        caught: 18,
        timeout: 1,
        missed: 1,
        unviable: 80,
    };
    assert!(outcome.reaches(95) && !outcome.reaches(96));
    assert!(!Outcome::default().reaches(0));
}
