//! Adds the plugin to the network's configuration, keeps it there, removes it.
//!
//! Invariants: a runtime that reads at any moment finds a complete configuration and a complete binary; what
//! others wrote into the configuration stays unchanged; the entry is removed before the binary.

mod conflist;
pub mod keeper;
mod single;
mod unmaintained;

use std::{
    fs::{self, File},
    io::{self, Seek as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use self::conflist::NetworkConfig;
pub use self::{conflist::Entry, unmaintained::Unmaintained};
use super::{
    TYPE,
    credentials::{self, Credentials},
};
use sidetrack_base::files::{self, replace};

/// Where the plugin is installed, and how it is configured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Installation {
    /// Directory of plugins, such as `/opt/cni/bin`.
    pub bin_dir: PathBuf,
    /// Directory of network configurations, such as `/etc/cni/net.d`.
    pub conf_dir: PathBuf,
    /// The entry in the configuration.
    pub entry: Entry,
    /// What the plugin asks the API server with, if it can ask.
    pub credentials: Option<Credentials>,
}

impl Installation {
    /// Puts everything in place. Returns what was done, in words; nothing if all was there.
    ///
    /// # Errors
    /// If something cannot be put in place; what was there stays.
    pub fn install(&self) -> Result<Vec<String>> {
        let mut done = Vec::new();
        // The binary first, because the entry names it.
        if let Some(path) = self.put_binary()? {
            done.push(format!("put {}", path.display()));
        }
        done.extend(self.put_entry()?);
        // Last: without them the entry works, except where sidetrack is uninstalled and no agent removes it.
        if let Some(credentials) = &self.credentials
            && credentials.put(&self.conf_dir)?
        {
            done.push(format!("put {}", self.kubeconfig().display()));
        }
        Ok(done)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.conf_dir.join(credentials::FILE)
    }

    fn binary(&self) -> PathBuf {
        self.bin_dir.join(TYPE)
    }

    fn put_binary(&self) -> Result<Option<PathBuf>> {
        if !self.bin_dir.is_dir() {
            bail!(
                "{} is not a directory; pass the one with the network's plugins to --cni-bin-dir",
                self.bin_dir.display()
            );
        }
        let mut own = File::open("/proc/self/exe").context("read this program")?;
        let path = self.binary();
        let is_own = |mut installed| files::are_same(&mut own, &mut installed);
        if File::open(&path).and_then(is_own).unwrap_or_default() && files::is_executable(&path) {
            return Ok(None);
        }
        own.rewind().context("read this program")?;
        files::replace_by_copy(&path, &mut own, 0o755)?;
        Ok(Some(path))
    }

    fn put_entry(&self) -> Result<Option<String>> {
        let Some((path, mut config)) = self.active()? else {
            bail!(
                "no network configuration is in {} yet; the plugin is added as soon as the network's own is there",
                self.conf_dir.display()
            );
        };
        let context = || format!("add the plugin to {}", path.display());
        if !config.put(&self.entry).with_context(context)? {
            return Ok(None);
        }
        if config.is_list() {
            replace(&path, config.text().as_bytes(), files::mode(&path))?;
            return Ok(Some(format!("added to {}", path.display())));
        }
        single::replace_by_list(&path, &config).map(Some)
    }

    /// The configuration that runtimes use: the first valid one by name. If it replaced another file, and
    /// another program has written that file again, it is that file.
    fn active(&self) -> Result<Option<(PathBuf, NetworkConfig)>> {
        for path in self.configurations()? {
            match fs::read(&path) {
                Ok(text) => match NetworkConfig::parse(&path, &text) {
                    Ok(config) => {
                        return Ok(Some(single::rewritten(&path).unwrap_or((path, config))));
                    }
                    // Some runtimes skip it as well; others use no configuration while it exists.
                    Err(error) => tracing::debug!("{}: {error:#}", path.display()),
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("read {}", path.display()));
                }
            }
        }
        Ok(None)
    }

    fn configurations(&self) -> Result<Vec<PathBuf>> {
        configurations(&self.conf_dir)
    }

    /// Removes this agent's entries, and the plugin unless another agent's entry needs it. Returns what was done,
    /// in words.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn remove(&self, keep_binary: bool) -> Result<Vec<String>> {
        let socket = self.entry.socket();
        let mut done = remove_entries(&self.conf_dir, socket)?;
        let binary = self.binary();
        let needed = !Entries::of_socket(&self.conf_dir, socket)?.other.is_empty();
        if !keep_binary && !needed && binary.exists() {
            fs::remove_file(&binary).with_context(|| format!("remove {}", binary.display()))?;
            done.push(format!("removed {}", binary.display()));
        }
        Ok(done)
    }
}

/// Removes the entries that ask the agent on this socket, and the credentials unless another agent's entry needs
/// them; the binary stays. Returns what was done, in words.
///
/// # Errors
/// If something cannot be removed.
pub fn remove_entries(conf_dir: &Path, socket: &Path) -> Result<Vec<String>> {
    let mut done = Vec::new();
    if !conf_dir.exists() {
        return Ok(done);
    }
    let mut needed = false;
    for (path, mut config) in valid(conf_dir)? {
        if config.remove(socket) {
            done.push(single::restore(&path, &config)?);
        }
        needed |= config.needs(credentials::FILE);
    }
    if !needed && Credentials::remove(conf_dir)? {
        done.push(format!(
            "removed {}",
            conf_dir.join(credentials::FILE).display()
        ));
    }
    Ok(done)
}

/// Configurations with the plugin's entry.
#[derive(Debug, Default)]
pub struct Entries {
    /// Those that ask the agent on the socket in question.
    pub own: Vec<PathBuf>,
    /// All others.
    pub other: Vec<PathBuf>,
    /// The plugin's credentials, if there are any.
    pub credentials: Option<PathBuf>,
    /// Whether another agent's entry needs them.
    pub needs_credentials: bool,
}

impl Entries {
    /// All in a directory, which need not exist.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of_socket(conf_dir: &Path, socket: &Path) -> Result<Self> {
        let mut all = Self::default();
        if !conf_dir.exists() {
            return Ok(all);
        }
        for (path, mut config) in valid(conf_dir)? {
            if config.remove(socket) {
                all.own.push(path);
            } else if config.has_plugin() {
                all.other.push(path);
            }
            all.needs_credentials |= config.needs(credentials::FILE);
        }
        let credentials = conf_dir.join(credentials::FILE);
        all.credentials = credentials.exists().then_some(credentials);
        Ok(all)
    }
}

/// The configurations that can be parsed.
fn valid(conf_dir: &Path) -> Result<Vec<(PathBuf, NetworkConfig)>> {
    let mut found = Vec::new();
    for path in configurations(conf_dir)? {
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        if let Ok(config) = NetworkConfig::parse(&path, &text) {
            found.push((path, config));
        }
    }
    Ok(found)
}

fn configurations(conf_dir: &Path) -> Result<Vec<PathBuf>> {
    let list = || {
        format!(
            "list {}; pass the directory of network configurations to --cni-conf-dir",
            conf_dir.display()
        )
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(conf_dir).with_context(list)? {
        let path = entry.with_context(list)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("conf" | "conflist" | "json")) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;
