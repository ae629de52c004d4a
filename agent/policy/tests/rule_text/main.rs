//! The decision against the rule text: for every policy and connection, `sidetrack_common::decide`
//! decides what the printed rules do, by the line that `rules::line_of` names.
//!
//! The rules are read back and followed by a small netfilter in this test. `cargo xtask compare`
//! compares both with the kernel's netfilter, for fewer policies.
//!
//! The random cases are the same in every run. `PROPTEST_RNG_SEED` selects others, and a larger
//! `PROPTEST_CASES` runs more of them.

mod evaluate;
mod fixture;
mod generate;
mod netfilter;

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    ops::RangeInclusive,
};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner},
};
use sidetrack_common::rule::Rule;

use self::{
    evaluate::{Disagreement, Evaluation},
    fixture::Case,
};

const CASES: u32 = 4096;

/// Numbers of the rules for outbound and for inbound connections.
const OUTBOUND: [RangeInclusive<u32>; 3] = [5..=5, 10..=27, 32..=37];
const INBOUND: [RangeInclusive<u32>; 1] = [41..=51];

#[test]
fn outbound_decisions_are_what_the_rules_do() {
    all_agree(generate::outbound(), OUTBOUND);
}

#[test]
fn inbound_decisions_are_what_the_rules_do() {
    all_agree(generate::inbound(), INBOUND);
}

/// Checks that both agree, and that every rule decided at least one case: a rule that no case meets
/// is not tested.
fn all_agree<const N: usize>(cases: impl Strategy<Value = Case>, rules: [RangeInclusive<u32>; N]) {
    let met = RefCell::new(HashSet::new());
    let outcome = runner(CASES).run(&cases, |case| {
        let evaluation = Evaluation::of(&case);
        met.borrow_mut().insert(evaluation.decision.rule);
        evaluation
            .compare()
            .map_err(|what| TestCaseError::fail(what.to_string()))
    });
    passed(outcome);
    let met = met.into_inner();
    let expected: HashSet<Rule> = rules
        .into_iter()
        .flatten()
        .filter_map(Rule::from_number)
        .collect();
    assert_eq!(met, expected, "rules met, and rules to be met");
}

#[test]
fn a_missing_line_is_noticed() {
    sabotage(|evaluation| {
        let line = evaluation.decisive_line()?;
        Some(evaluation.text_with(line, ""))
    });
}

#[test]
fn another_port_is_noticed() {
    sabotage(|evaluation| {
        let (line, port) = evaluation.redirect()?;
        let other = if port == 80 { "81" } else { "80" };
        let other = line.replace(&port.to_string(), other);
        Some(evaluation.text_with(line, &format!("{other}\n")))
    });
}

/// Checks that the comparison can fail: that it does whenever the rules that it follows are not
/// the policy's but changed in what decided, and that it is not only the line it fails by.
fn sabotage(change: impl Fn(&Evaluation<'_>) -> Option<String>) {
    for cases in [generate::outbound().boxed(), generate::inbound().boxed()] {
        let verdicts = Cell::new(0);
        let outcome = runner(CASES / 4).run(&cases, |case| {
            let evaluation = Evaluation::of(&case);
            let Some(text) = change(&evaluation) else {
                return Ok(());
            };
            match evaluation.against(text).compare() {
                Err(Disagreement::Verdict) => verdicts.set(verdicts.get() + 1),
                Err(Disagreement::Line) => {}
                unfit => return Err(TestCaseError::fail(format!("{unfit:?}"))),
            }
            Ok(())
        });
        passed(outcome);
        assert!(verdicts.get() > 100, "{} verdicts differ", verdicts.get());
    }
}

fn passed(outcome: Result<(), TestError<Case>>) {
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, case)) => panic!("{reason}\n{}", Evaluation::of(&case)),
        Err(TestError::Abort(reason)) => panic!("no cases: {reason}"),
    }
}

fn runner(cases: u32) -> TestRunner {
    let given = Config::default();
    TestRunner::new(Config {
        cases: given.cases.max(cases),
        rng_seed: match given.rng_seed {
            RngSeed::Random => RngSeed::Fixed(0),
            seed => seed,
        },
        // The message has the whole case, so no file of seeds is needed.
        failure_persistence: None,
        ..given
    })
}
