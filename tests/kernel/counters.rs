//! Connections are counted: each exactly once, under the rule and the position that decided it, and
//! metrics never lose or repeat one.

mod counted;
mod inbound;
mod policies;
mod restart;

use anyhow::{Context as _, Result, ensure};

use self::{counted::Counted, policies::POLICIES};

kernel_test!(each_connection_is_counted_once);
fn each_connection_is_counted_once() -> Result<()> {
    let mut counted = Counted::new()?;
    for policy in POLICIES {
        counted.enroll(policy).context(policy.name)?;
        for case in policy.cases {
            counted.check(case).context(policy.name)?;
        }
        // The previous policy is removed with what it had counted.
        counted.metrics_agree(policy.name)?;
    }
    Ok(())
}

kernel_test!(bpftool_shows_names_as_text);
fn bpftool_shows_names_as_text() -> Result<()> {
    let mut counted = Counted::new()?;
    let policy = &POLICIES[0];
    counted.enroll(policy)?;
    counted.check(&policy.cases[0])?;
    let pods = counted.dump("POD_BY_NETNS")?;
    let pod = &pods.first().context("a pod")?["value"];
    ensure!(
        pod["namespace"] == "test" && pod["name"] == "app",
        "{pod:#}"
    );
    let counts = counted.dump("COUNT_BY_RULE")?;
    let rule = format!("{:?}", policy.cases[0].rule);
    ensure!(
        counts.iter().any(|row| row["key"]["rule"] == *rule),
        "{rule} is not in {counts:#?}"
    );
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
        // In the other rounds the counters are removed with the pod before they were read.
        counted.release()?;
        counted.metrics_agree("released")?;
    }
    Ok(())
}

kernel_test!(a_change_of_policy_keeps_what_was_counted_apart);
fn a_change_of_policy_keeps_what_was_counted_apart() -> Result<()> {
    let mut counted = Counted::new()?;
    // Both have a first excluded port, and it is not the same.
    let (first, second) = (&POLICIES[0], &POLICIES[1]);
    for policy in [first, second, first, second] {
        counted.enroll(policy)?;
        for case in policy.cases {
            counted.check(case).context(policy.name)?;
        }
        counted.metrics_agree(policy.name)?;
        counted.pod_agrees(policy.name)?;
    }
    // The counters of one policy, and a sum for each rule.
    counted.has_counters_of_one_policy()
}

kernel_test!(families_are_counted_apart);
fn families_are_counted_apart() -> Result<()> {
    let counted = Counted::new()?;
    counted.enroll_dual_stack()?;
    counted.connect_v6()?;
    let (v4, v6) = (counted.out_all(&[])?, counted.out_all(&["-6"])?);
    ensure!((v4, v6) == (0, 1), "IPv4 {v4}, IPv6 {v6}");
    Ok(())
}
