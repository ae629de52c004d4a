//! What the agent has read of its credentials when it started. A client reads a token again each minute, and never the
//! authority of the API server, nor a kubeconfig.

use std::{env, fs, path::PathBuf};

/// Where kubelet puts the authority of the API server into a container; it replaces it as it does the token.
const AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// A file, as it was.
#[derive(Debug)]
pub(super) struct Credentials {
    path: PathBuf,
    read: Option<Vec<u8>>,
}

impl Credentials {
    /// As they are now.
    pub(super) fn now() -> Self {
        let path = env::var_os("KUBECONFIG").unwrap_or_else(|| AUTHORITY.into());
        Self::at(path.into())
    }

    fn at(path: PathBuf) -> Self {
        Self {
            read: fs::read(&path).ok(),
            path,
        }
    }

    /// Whether another agent would have others.
    pub(super) fn have_changed(&self) -> bool {
        let now = fs::read(&self.path).ok();
        now.is_some() && now != self.read
    }
}

#[cfg(test)]
mod tests;
