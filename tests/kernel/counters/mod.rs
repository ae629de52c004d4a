//! Connections are counted: each exactly once, under the rule and the position that decided it, and
//! metrics never lose or repeat one.

mod counted;
mod policies;

use anyhow::{Context as _, Result};

use self::{counted::Counted, policies::POLICIES};

kernel_test!(each_connection_is_counted_once);
fn each_connection_is_counted_once() -> Result<()> {
    let mut counted = Counted::new()?;
    for policy in POLICIES {
        counted.enroll(policy).context(policy.name)?;
        for case in policy.cases {
            counted.check(case).context(policy.name)?;
        }
        // The policy before was left with what it had counted.
        counted.metrics_agree(policy.name)?;
    }
    Ok(())
}

kernel_test!(metrics_outlive_pods);
fn metrics_outlive_pods() -> Result<()> {
    let mut counted = Counted::new()?;
    let policy = &POLICIES[0];
    let cases = [&policy.cases[0], &policy.cases[1], &policy.cases[2]];
    for round in 0..3 {
        counted.enroll(policy)?;
        // A different number in each round: the counters of a pod that returns start from zero.
        for case in &cases[round..] {
            counted.connect(&case.way)?;
            counted.expect(case.rule);
        }
        if round == 1 {
            counted.metrics_agree("enrolled again")?;
        }
        // In the other rounds nobody has read the counters before they leave with the pod.
        counted.release()?;
        counted.metrics_agree("released")?;
    }
    Ok(())
}
