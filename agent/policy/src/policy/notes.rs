//! Remarks about a policy for people.

use super::Policy;

impl Policy {
    /// Remarks to show for a pod with this policy; none of them is an error.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.lost();
        notes.extend(self.remarks.iter().cloned());
        notes.extend(self.dns_note());
        notes.extend(self.without_effect());
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

    /// Annotations that have no effect, and were perhaps meant to have one.
    #[must_use]
    pub fn without_effect(&self) -> Vec<String> {
        let unknown = self.unknown_annotations.iter();
        unknown
            .map(|unknown| format!("annotation {unknown}; it has no effect"))
            .collect()
    }

    /// What the policy requests and the pod does not get.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        self.lost_dns().into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
