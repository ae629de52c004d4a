//! Bodies for the webhook: whatever one is, the answer is sound, or says what is wrong.

use sidetrack_policy::{
    mesh::Mesh,
    select::Enroll,
    webhook::{Outcome, Settings},
};

#[path = "../../../agent/policy/tests/webhook/judge.rs"]
mod judge;

/// Checks one input, with each flag and on each path.
pub fn check(input: &[u8]) {
    for enroll in [Enroll::Labeled, Enroll::Injected] {
        let [own, enabled] = [None, Some("enabled")].map(|namespace_label| {
            let settings = Settings {
                mesh: &Mesh::new(enroll),
                namespace_label,
                image: "sidetrack",
            };
            judge::judge(input, &settings)
        });
        assert_eq!(own.is_some(), enabled.is_some());
        // A pod that opts in by itself does not need its namespace for it.
        if let (Some(own), Some(enabled)) = (own, enabled)
            && own.outcome != Outcome::Unchanged
        {
            assert_eq!(own.outcome, enabled.outcome);
            assert_eq!(own.response, enabled.response);
            assert_eq!(own.pod, enabled.pod);
        }
    }
}
