//! What lets the plugin ask the API server whether sidetrack is still installed: a kubeconfig on the node
//! with the token of a service account that may do nothing else.
//!
//! Source of the token: a Secret of type `kubernetes.io/service-account-token`. Its token does not expire
//! and is not bound to a pod, so that it ends with the install and not with an agent or a restart of the
//! node.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::json;

use sidetrack_base::files;

/// The kubeconfig's name in the directory of network configurations. Runtimes ignore its extension.
pub const FILE: &str = "sidetrack-cni.kubeconfig";

/// The Secret, mounted in the agent's container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Credentials {
    /// The directory with `token` and `ca.crt`.
    pub secret: PathBuf,
}

const TOKEN: &str = "token";
const AUTHORITY: &str = "ca.crt";

impl Credentials {
    /// The files of the Secret. The API server may issue another token.
    pub(super) fn files(&self) -> [PathBuf; 2] {
        [TOKEN, AUTHORITY].map(|name| self.secret.join(name))
    }

    /// Writes the kubeconfig if it differs. Returns whether it did.
    ///
    /// # Errors
    /// If the Secret has no token yet, the API server's address is unknown, or the file cannot be written.
    pub fn put(&self, conf_dir: &Path) -> Result<bool> {
        let read = |name| {
            let path = self.secret.join(name);
            fs::read_to_string(&path).with_context(|| {
                format!(
                    "read {}, from the Secret with the plugin's credentials",
                    path.display()
                )
            })
        };
        let (token, authority) = (read(TOKEN)?, read(AUTHORITY)?);
        let text = kubeconfig(&server()?, token.trim(), &authority);
        let path = conf_dir.join(FILE);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(false);
        }
        files::replace(&path, text.as_bytes(), 0o600)?;
        Ok(true)
    }

    /// Removes the kubeconfig. Returns whether it was there.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(conf_dir: &Path) -> Result<bool> {
        let path = conf_dir.join(FILE);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
        }
    }
}

/// The API server's address, which kubelet sets in every container. Its DNS name does not resolve on the node.
fn server() -> Result<String> {
    let variable = |name| {
        env::var(name)
            .with_context(|| format!("{name} is not set, which kubelet sets in every pod"))
    };
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    Ok(if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    })
}

/// JSON, which is YAML as well.
fn kubeconfig(server: &str, token: &str, authority: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {
            "server": server,
            "certificate-authority-data": ByteString(authority.as_bytes().to_vec()),
        }}],
        "users": [{"name": "sidetrack-cni", "user": {"token": token}}],
        "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "sidetrack-cni"}}],
        "current-context": "node",
    });
    format!("{config:#}\n")
}
