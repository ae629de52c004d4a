//! The decision against the rule text: whatever the policy and the connection, what
//! `sidetrack_common::decide` says is what the rules printed for the policy do, by the line that
//! `rules::line_of` names.
//!
//! The rules are read back and followed by a netfilter of the test's own. `cargo xtask compare`
//! holds both to the kernel's, for fewer policies.
//!
//! Every run is the same; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` make it another and a longer one.

mod generate;
mod judge;
mod netfilter;
mod world;

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
    judge::{Disagreement, Judgement},
    world::Case,
};

const CASES: u32 = 4096;

/// Numbers of the rules that judge a connect, and an arrival from elsewhere.
const OUTBOUND: RangeInclusive<u32> = 10..=27;
const INBOUND: RangeInclusive<u32> = 41..=50;

#[test]
fn outbound_decisions_are_what_the_rules_do() {
    all_agree(generate::outbound(), OUTBOUND);
}

#[test]
fn inbound_decisions_are_what_the_rules_do() {
    all_agree(generate::inbound(), INBOUND);
}

/// Checks that the two agree, and that every rule had a say: a rule that no case meets is a rule
/// that nothing is known of.
fn all_agree(cases: impl Strategy<Value = Case>, rules: RangeInclusive<u32>) {
    let met = RefCell::new(HashSet::new());
    let outcome = runner(CASES).run(&cases, |case| {
        let judgment = Judgement::of(&case);
        met.borrow_mut().insert(judgment.decision.rule);
        judgment
            .compare()
            .map_err(|what| TestCaseError::fail(what.to_string()))
    });
    passed(outcome);
    let met = met.into_inner();
    let expected: HashSet<Rule> = rules.filter_map(Rule::from_number).collect();
    assert_eq!(met, expected, "rules met, and rules to be met");
}

#[test]
fn a_missing_line_is_noticed() {
    sabotage(|judgment| {
        let line = judgment.decisive_line()?;
        Some(judgment.text_with(line, ""))
    });
}

#[test]
fn another_port_is_noticed() {
    sabotage(|judgment| {
        let (line, port) = judgment.redirect()?;
        let other = if port == 80 { "81" } else { "80" };
        let other = line.replace(&port.to_string(), other);
        Some(judgment.text_with(line, &format!("{other}\n")))
    });
}

/// Checks that the comparison can fail: that it does whenever the rules that it follows are not
/// the policy's but changed in what decided, and that it is not only the line it fails by.
fn sabotage(change: impl Fn(&Judgement<'_>) -> Option<String>) {
    for cases in [generate::outbound().boxed(), generate::inbound().boxed()] {
        let verdicts = Cell::new(0);
        let outcome = runner(CASES / 4).run(&cases, |case| {
            let judgment = Judgement::of(&case);
            let Some(text) = change(&judgment) else {
                return Ok(());
            };
            match judgment.against(text).compare() {
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
        Err(TestError::Fail(reason, case)) => panic!("{reason}\n{}", Judgement::of(&case)),
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
        // The message has the whole case; a seed for a file would only say it again.
        failure_persistence: None,
        ..given
    })
}
