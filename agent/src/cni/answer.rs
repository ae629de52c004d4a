//! Errors, as the specification defines them.

use serde_json::json;

/// Versions of the specification that have chained plugins.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// An error of the specification: kubelet shows `msg` and `details` at the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: u32,
    message: String,
    details: String,
    version: Option<String>,
}

impl Error {
    /// Code 1: incompatible version.
    pub fn version(version: &str) -> Self {
        let message = format!("CNI version {version:?} is not supported");
        let details = format!(
            "sidetrack is chained after another plugin, which needs one of {}",
            VERSIONS.join(", ")
        );
        Self::new(1, message).detailed(details)
    }

    /// Code 4: invalid environment variables.
    pub fn variable(name: &str, problem: &str) -> Self {
        Self::new(4, format!("environment variable {name} {problem}"))
    }

    /// Code 5: I/O failure.
    pub fn io(message: String) -> Self {
        Self::new(5, message)
    }

    /// Code 6: undecodable content.
    pub fn decode(message: String) -> Self {
        Self::new(6, message)
    }

    /// Code 7: invalid configuration.
    pub fn config(message: String) -> Self {
        Self::new(7, message)
    }

    /// Code 11: the runtime should try again later.
    pub fn later(message: String) -> Self {
        Self::new(11, message)
    }

    /// Code 100, the first of the plugin's own codes: the pod cannot be intercepted.
    pub fn refused(message: String) -> Self {
        Self::new(100, message)
    }

    fn new(code: u32, message: String) -> Self {
        Self {
            code,
            message,
            details: String::new(),
            version: None,
        }
    }

    /// Adds what to do about it.
    pub fn detailed(mut self, details: String) -> Self {
        self.details = details;
        self
    }

    /// Adds the version of the runtime, once it is known.
    pub fn spoken(mut self, version: &str) -> Self {
        self.version = Some(version.to_owned());
        self
    }

    /// The JSON for the runtime.
    pub fn to_json(&self) -> String {
        json!({
            "cniVersion": self.version.as_deref().unwrap_or("1.0.0"),
            "code": self.code,
            "msg": format!("sidetrack: {}", self.message),
            "details": self.details,
        })
        .to_string()
    }
}
