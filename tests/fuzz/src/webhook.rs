//! Bodies for the webhook: the answer to each passes all checks, or is an error that can be shown.

use sidetrack_policy::{
    mesh::Mesh,
    select::Enroll,
    webhook::{Outcome, Settings},
};

#[path = "../../../agent/policy/tests/webhook/check.rs"]
mod check;

/// Checks one input, with each flag and on each path.
pub fn check(input: &[u8]) {
    for enroll in [Enroll::Labeled, Enroll::Injected] {
        let [own, enabled] = [None, Some("enabled")].map(|namespace_label| {
            let settings = Settings {
                mesh: &Mesh::new(enroll),
                namespace_label,
                image: "sidetrack",
            };
            check::check_answer(input, &settings)
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
