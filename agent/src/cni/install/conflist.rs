//! A network configuration: a list of plugins, or a single one. What others wrote is kept letter for
//! letter.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::cni::{TYPE, VERSIONS};

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
    /// Whose pods start also without an agent.
    exclude_namespaces: Vec<String>,
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
        }
    }
}

/// A configuration file's content.
#[derive(Debug)]
pub struct NetworkConfig {
    fields: BTreeMap<String, Box<RawValue>>,
    plugins: Vec<Box<RawValue>>,
    list: bool,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
}

impl NetworkConfig {
    /// Reads one; the file's name tells a list from a single plugin.
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
            let plugins = fields.remove("plugins").context("it has no plugins")?;
            let plugins: Vec<Box<RawValue>> =
                serde_json::from_str(plugins.get()).context("its plugins are no list")?;
            if plugins.is_empty() {
                bail!("it has no plugins");
            }
            return Ok(Self {
                fields,
                plugins,
                list,
            });
        }
        if !fields.contains_key("type") {
            bail!("it has no type");
        }
        let single: Box<RawValue> =
            serde_json::from_slice(text).context("not a network configuration")?;
        fields.retain(|name, _| matches!(name.as_str(), "name" | "cniVersion"));
        Ok(Self {
            fields,
            plugins: vec![single],
            list,
        })
    }

    /// Whether it was a list already.
    pub fn is_list(&self) -> bool {
        self.list
    }

    /// Puts the plugin behind all others; whether that changed anything.
    pub fn put(&mut self, entry: &Entry) -> Result<bool> {
        let version = self.fields.get("cniVersion").map(|raw| raw.get());
        let version: Option<String> = version.and_then(|raw| serde_json::from_str(raw).ok());
        let version = version.unwrap_or_else(|| "0.1.0".to_owned());
        if !VERSIONS.contains(&version.as_str()) {
            bail!(
                "its cniVersion is {version}, which sidetrack does not speak; it speaks {}",
                VERSIONS.join(", ")
            );
        }
        let same = |raw: &RawValue| {
            serde_json::from_str::<Entry>(raw.get()).is_ok_and(|there| there == *entry)
        };
        let ours = self.plugins.iter().filter(|raw| is_ours(raw)).count();
        // Where others have added theirs behind it, it may stay.
        if ours == 1 && self.plugins.iter().skip(1).any(|raw| same(raw)) {
            return Ok(false);
        }
        self.take_away();
        if self.plugins.is_empty() {
            bail!("it has no plugin for sidetrack to stand behind");
        }
        self.plugins.push(to_raw_value(entry)?);
        Ok(true)
    }

    /// Whether the plugin is in it.
    pub fn has_plugin(&self) -> bool {
        self.plugins.iter().any(|raw| is_ours(raw))
    }

    /// Removes the plugin; whether it was there.
    pub fn take_away(&mut self) -> bool {
        let before = self.plugins.len();
        self.plugins.retain(|raw| !is_ours(raw));
        self.plugins.len() != before
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

fn is_ours(raw: &RawValue) -> bool {
    serde_json::from_str::<Kind>(raw.get()).is_ok_and(|plugin| plugin.kind == TYPE)
}
