//! Decisions as the kernel's verifier is to see them.

use sidetrack_common::{decide::Decision, policy::Row, rule::Rule};

/// The same decision, whose rule and position are any to the verifier. It walks what comes after a decision once
/// then, not once for each rule.
#[inline(always)]
pub fn any(decision: Decision, policy: impl Row) -> Decision {
    let zero = policy.zero();
    let number = decision.rule as u32 ^ zero;
    Decision {
        // SAFETY: `zero` is 0, because no list has the highest bit (checked when sidetrack-common is compiled), so this is
        // the number of the decision's own rule. In the kernel it is a number that maps are asked for, whatever it is.
        rule: unsafe { core::mem::transmute::<u32, Rule>(number) },
        index: decision.index ^ zero,
        ..decision
    }
}
