//! Remarks about a policy for people.

use super::Policy;

impl Policy {
    /// Remarks to show for a pod with this policy; none of them is an error.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.lost();
        notes.extend(
            (self.unknown_annotations.iter())
                .map(|unknown| format!("annotation {unknown}; it has no effect")),
        );
        if self.before_sidecar {
            notes.push(
                "its outbound connections bypass the sidecar until the sidecar first listens"
                    .to_owned(),
            );
        }
        if self.accelerate {
            notes.push(
                "its connections to the sidecar are accelerated, which is experimental".to_owned(),
            );
        }
        notes
    }

    /// Features that the policy requests and sidetrack does not support.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        self.lost_dns().into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
