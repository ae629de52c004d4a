//! A network configuration: a list of plugins, or a single one. What others wrote is kept byte for
//! byte.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

use super::read;
use crate::cni::{TYPE, VERSIONS};
use sidetrack_base::files;
use sidetrack_policy::PodRef;

/// The plugin's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// [`TYPE`].
    #[serde(rename = "type")]
    kind: String,
    /// The agent's socket, as the node sees it.
    socket: PathBuf,
    /// How long ADD waits for the agent.
    timeout_seconds: u64,
    /// Namespaces whose pods start also without an agent.
    exclude_namespaces: Vec<String>,
    /// The agent's DaemonSet, NAMESPACE/NAME.
    #[serde(skip_serializing_if = "Option::is_none")]
    daemonset: Option<String>,
    /// What the plugin asks the API server about it with, as the node sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    kubeconfig: Option<PathBuf>,
    /// This node's name in Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
}

impl Entry {
    /// An entry.
    #[must_use]
    pub fn new(socket: &Path, timeout_seconds: u64, exclude_namespaces: Vec<String>) -> Self {
        Self {
            kind: TYPE.to_owned(),
            socket: socket.to_owned(),
            timeout_seconds,
            exclude_namespaces,
            daemonset: None,
            kubeconfig: None,
            node_name: None,
        }
    }

    /// The agent's socket, as the node sees it.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// With what the plugin needs to learn whether sidetrack was uninstalled, or the gate of its node is open.
    #[must_use]
    pub fn of_daemonset(mut self, daemonset: &PodRef, kubeconfig: PathBuf, node: &str) -> Self {
        self.daemonset = Some(daemonset.to_string());
        self.kubeconfig = Some(kubeconfig);
        self.node_name = Some(node.to_owned());
        self
    }
}

/// A configuration file's content.
#[derive(Debug)]
pub struct NetworkConfig {
    fields: BTreeMap<String, Box<RawValue>>,
    plugins: Vec<Box<RawValue>>,
    list: bool,
    /// The file as it was read.
    read: Vec<u8>,
}

/// What every version of sidetrack has in its entry. Whatever else its type says that it is one.
#[derive(Deserialize)]
struct Own {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    socket: Value,
    #[serde(default)]
    kubeconfig: Value,
}

impl NetworkConfig {
    /// Parses a file. Its extension shows whether it is a list or a single plugin.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self> {
        let mut fields: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(text).context("not a network configuration")?;
        let name = fields.get("name").map(|raw| raw.get());
        if name.is_none_or(|name| serde_json::from_str::<String>(name).is_err()) {
            bail!("it has no name");
        }
        let list = path
            .extension()
            .is_some_and(|extension| extension == "conflist");
        if list {
            let plugins = fields.remove("plugins");
            let plugins = plugins.map(|raw| serde_json::from_str(raw.get()));
            let plugins: Option<Vec<Box<RawValue>>> =
                plugins.transpose().context("its plugins are no list")?;
            let plugins = plugins.unwrap_or_default();
            return Ok(Self {
                fields,
                plugins,
                list,
                read: text.to_owned(),
            });
        }
        if !fields.contains_key("type") {
            bail!("it has no type");
        }
        let single: Box<RawValue> =
            serde_json::from_slice(text).context("not a network configuration")?;
        fields.retain(|name, _| matches!(name.as_str(), "name" | "cniVersion" | "cniVersions"));
        Ok(Self {
            fields,
            plugins: vec![single],
            list,
            read: text.to_owned(),
        })
    }

    /// Whether there are any. A list may have all of them in files of a directory with its name (libcni 1.3).
    pub fn has_plugins(&self) -> bool {
        !self.plugins.is_empty()
    }

    /// Whether it was a list already.
    pub fn is_list(&self) -> bool {
        self.list
    }

    /// Adds the plugin after all others. Returns whether that changed anything.
    pub fn put(&mut self, entry: &Entry) -> Result<bool> {
        let versions = self.versions();
        if !versions.iter().any(|it| VERSIONS.contains(&it.as_str())) {
            bail!(
                "its cniVersion is {}, which sidetrack does not support; it supports {}",
                versions.join(", "),
                VERSIONS.join(", ")
            );
        }
        let same = |raw: &RawValue| {
            serde_json::from_str::<Entry>(raw.get()).is_ok_and(|existing| existing == *entry)
        };
        let own = self.plugins.iter().filter(|raw| is_own(raw)).count();
        // It may stay where others have added theirs after it.
        if own == 1 && self.plugins.iter().skip(1).any(|raw| same(raw)) {
            return Ok(false);
        }
        // Another agent's, too: a runtime that asks two agents would wait for both.
        self.plugins.retain(|raw| !is_own(raw));
        if self.plugins.is_empty() {
            bail!("it has no plugin for sidetrack to run after");
        }
        self.plugins.push(to_raw_value(entry)?);
        Ok(true)
    }

    /// The versions that it is for; runtimes take the latest one that they support (`ConfListFromBytes` of libcni).
    fn versions(&self) -> Vec<String> {
        let list = self.fields.get("cniVersions").map(|raw| raw.get());
        let list = list.and_then(|raw| serde_json::from_str(raw).ok());
        let mut versions: Vec<String> = list.unwrap_or_default();
        let one = self.fields.get("cniVersion").map(|raw| raw.get());
        let one: Option<String> = one.and_then(|raw| serde_json::from_str(raw).ok());
        versions.extend(one);
        if versions.is_empty() {
            versions.push("0.1.0".to_owned());
        }
        versions
    }

    /// Whether the plugin is in it.
    pub fn has_plugin(&self) -> bool {
        self.plugins.iter().any(|raw| is_own(raw))
    }

    /// Removes the entries that ask the agent on this socket. Returns whether there were any.
    pub fn remove(&mut self, socket: &Path) -> bool {
        let before = self.plugins.len();
        self.plugins.retain(|raw| !asks(raw, socket));
        self.plugins.len() != before
    }

    /// Whether an entry of the plugin needs the credentials of this name.
    pub fn needs(&self, credentials: &str) -> bool {
        let mut entries = self.plugins.iter().filter_map(|raw| own(raw));
        entries.any(|entry| {
            let path = entry.kubeconfig.as_str().map(Path::new);
            path.and_then(Path::file_name)
                .is_some_and(|name| name == credentials)
        })
    }

    /// Writes it in place of the file that it was read from, unless another program has done so since.
    pub fn write(&self, path: &Path) -> Result<()> {
        let has_changed = || !matches!(read(path), Ok(Some(now)) if now == self.read);
        let (text, mode) = (self.text(), files::mode(path));
        files::replace_unless(path, text.as_bytes(), mode, has_changed)
    }

    /// The file's content, always as a list.
    pub fn text(&self) -> String {
        let fields = self
            .fields
            .iter()
            .map(|(name, value)| format!("  {}: {},\n", serde_json::json!(name), value.get()));
        let plugins: Vec<String> = self
            .plugins
            .iter()
            .map(|raw| format!("    {}", raw.get()))
            .collect();
        format!(
            "{{\n{}  \"plugins\": [\n{}\n  ]\n}}\n",
            fields.collect::<String>(),
            plugins.join(",\n")
        )
    }
}

/// The entry, if it is one of sidetrack's.
fn own(raw: &RawValue) -> Option<Own> {
    let entry: Own = serde_json::from_str(raw.get()).ok()?;
    (entry.kind == TYPE).then_some(entry)
}

fn is_own(raw: &RawValue) -> bool {
    own(raw).is_some()
}

fn asks(raw: &RawValue, socket: &Path) -> bool {
    own(raw).is_some_and(|entry| entry.socket.as_str().map(Path::new) == Some(socket))
}

#[cfg(test)]
mod tests;
