//! The name of a pod.

use serde::Serialize;

/// Longest name of an object, such as a pod.
pub const LONGEST_NAME: usize = 253;
/// Longest name of a namespace.
pub const LONGEST_NAMESPACE: usize = 63;
/// Longest uid that is accepted. The API server makes them of 36 characters.
pub const LONGEST_UID: usize = 63;

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PodRef {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
}

impl PodRef {
    /// The DaemonSet that has made this pod: the name without what the API server has added to it
    /// (`SimpleNameGenerator`, k8s.io/apiserver/pkg/storage/names).
    ///
    /// # Errors
    /// If no DaemonSet makes pods of this name, or the API server may have shortened it.
    pub fn daemonset(&self) -> Result<Self, String> {
        /// Characters after the last hyphen.
        const RANDOM: usize = 5;
        /// Longest name that is made.
        const LONGEST: usize = 63;
        let parts = self.name.rsplit_once('-');
        let name = parts.filter(|(name, random)| !name.is_empty() && random.len() == RANDOM);
        match name {
            Some(_) if self.name.len() >= LONGEST => Err(format!(
                "the name of the DaemonSet of {self} may have been shortened"
            )),
            Some((name, _)) => Ok(Self {
                namespace: self.namespace.clone(),
                name: name.to_owned(),
            }),
            None => Err(format!("no DaemonSet makes a pod with the name of {self}")),
        }
    }
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl std::str::FromStr for PodRef {
    type Err = String;

    /// `NAMESPACE/NAME`, or `NAME` in namespace `default`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if !is_name(namespace, LONGEST_NAMESPACE) || !is_name(name, LONGEST_NAME) {
            return Err(format!(
                "{text:?} is not a name in a namespace; write NAMESPACE/NAME"
            ));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

/// Whether it is a valid name in Kubernetes. The kernel's maps have room for these, and messages and
/// commands can write them as NAMESPACE/NAME.
#[must_use]
pub fn is_name(text: &str, longest: usize) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= longest
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes
            .iter()
            .all(|byte| alphanumeric(byte) || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests;
