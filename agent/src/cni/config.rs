//! The network configuration a runtime passes on stdin: the fields the plugin uses.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;
use serde_json::value::RawValue;
use sidetrack_policy::PodRef;

use super::answer::{Error, VERSIONS};

/// How long ADD waits for the agent by default. An agent that is replaced is ready again after some seconds;
/// kubelet gives up after two minutes, and tries again.
const TIMEOUT_SECONDS: u64 = 10;
/// The longest wait that may be configured: less than kubelet's own timeout.
pub const MAX_SECONDS: u64 = 110;

/// The fields as they are written.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(rename = "cniVersion")]
    version: Option<String>,
    socket: Option<PathBuf>,
    #[serde(rename = "timeoutSeconds")]
    timeout_seconds: Option<u64>,
    #[serde(rename = "excludeNamespaces", default)]
    exclude_namespaces: Vec<String>,
    daemonset: Option<String>,
    kubeconfig: Option<PathBuf>,
    #[serde(rename = "nodeName")]
    node_name: Option<String>,
    #[serde(rename = "prevResult", borrow)]
    previous: Option<&'a RawValue>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<Attachment>>,
    /// Its name in libcni 1.2.0 to 1.2.2.
    #[serde(rename = "cni.dev/attachments")]
    valid_before: Option<Vec<Attachment>>,
}

/// A container that still exists, in a GC request.
#[derive(Debug, Deserialize)]
pub struct Attachment {
    /// Its id.
    #[serde(rename = "containerID")]
    pub container: String,
}

/// What sidetrack was installed as.
#[derive(Clone, Debug)]
pub struct Install {
    /// The agent's DaemonSet.
    pub daemonset: PodRef,
    /// What the API server is asked about it with.
    pub kubeconfig: PathBuf,
    /// This node's name in Kubernetes, if the entry has it.
    pub node: Option<String>,
}

/// The configuration, validated.
#[derive(Debug)]
pub struct Config<'a> {
    /// The version of the specification the runtime uses.
    pub version: String,
    /// The agent's socket.
    pub socket: PathBuf,
    /// How long to wait for the agent at most.
    pub patience: Duration,
    /// Namespaces whose pods also start when no agent answers.
    pub exclude_namespaces: Vec<String>,
    /// How to learn whether sidetrack is installed, if the entry says it.
    pub install: Option<Install>,
    /// The result of the plugins before this one.
    pub previous: Option<&'a RawValue>,
    /// In a GC request, the containers that still exist.
    pub valid: Option<Vec<Attachment>>,
}

impl<'a> Config<'a> {
    /// The command that removes from a node what an agent has left there.
    pub fn cleanup(&self) -> String {
        let mut command = format!("sidetrack-cni cleanup --socket {}", self.socket.display());
        let kubeconfig = self.install.as_ref().map(|install| &install.kubeconfig);
        if let Some(conf_dir) = kubeconfig.and_then(|file| file.parent()) {
            command += &format!(" --cni-conf-dir {}", conf_dir.display());
        }
        command
    }

    /// Parses and validates stdin.
    pub fn parse(stdin: &'a [u8]) -> Result<Self, Error> {
        let raw: Raw<'a> = serde_json::from_slice(stdin).map_err(|error| {
            Error::decode(format!("the configuration on stdin is not usable: {error}"))
        })?;
        let version = raw.version.unwrap_or_else(|| "0.1.0".to_owned());
        if !VERSIONS.contains(&version.as_str()) {
            return Err(Error::version(&version));
        }
        let socket = raw.socket.ok_or_else(|| {
            Error::config(
                "the configuration names no socket; write the agent's, such as \"socket\": \"/run/sidetrack/sidetrack.sock\"".to_owned(),
            )
            .spoken(&version)
        })?;
        let seconds = raw.timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
        if !(1..=MAX_SECONDS).contains(&seconds) {
            return Err(Error::config(format!(
                "timeoutSeconds is {seconds}; write 1 to {MAX_SECONDS}"
            ))
            .spoken(&version));
        }
        let install = match (raw.daemonset, raw.kubeconfig) {
            (Some(daemonset), Some(kubeconfig)) => {
                let daemonset = daemonset.parse().map_err(|error| {
                    Error::config(format!("daemonset is not usable: {error}")).spoken(&version)
                })?;
                Some(Install {
                    daemonset,
                    kubeconfig,
                    node: raw.node_name,
                })
            }
            _ => None,
        };
        Ok(Self {
            socket,
            install,
            patience: Duration::from_secs(seconds),
            exclude_namespaces: raw.exclude_namespaces,
            previous: raw.previous,
            valid: raw.valid.or(raw.valid_before),
            version,
        })
    }

    /// The result of the plugins before this one, unchanged.
    pub fn previous(&self) -> Result<&'a str, Error> {
        self.previous.map(RawValue::get).ok_or_else(|| {
            Error::config(
                "there is no prevResult: sidetrack makes no interfaces, it must be chained after the network's main plugin".to_owned(),
            )
        })
    }
}

#[cfg(test)]
mod tests;
