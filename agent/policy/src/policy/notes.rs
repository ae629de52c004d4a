//! Remarks about a policy for people.

use super::Policy;

impl Policy {
    /// What people should know of a pod with this policy although nothing is wrong.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.lost();
        if self.before_sidecar {
            notes.push(
                "until its sidecar first listens, its outbound connections go past it".to_owned(),
            );
        }
        notes
    }

    /// What sidetrack does not do of what the policy asks for.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.virtual_interfaces.is_empty() {
            notes.push(format!(
                "what passes through the pod from {} to elsewhere is left alone; what is delivered in the pod follows the rules",
                self.virtual_interfaces.join(",")
            ));
        }
        if self.dns_capture {
            notes.push(
                "DNS capture is asked for and not done: queries go to the server they are sent to"
                    .to_owned(),
            );
        }
        notes
    }
}

#[cfg(test)]
mod tests;
