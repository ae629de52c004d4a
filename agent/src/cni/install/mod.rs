//! Adds the plugin to the network's configuration, keeps it there, removes it.
//!
//! Invariants: a runtime that reads at any moment finds a complete configuration and a complete binary; what
//! others wrote into the configuration stays unchanged; the entry is removed before the binary.

mod conflist;
mod files;
mod keeper;
mod single;

use std::{fs, io, path::PathBuf};

use anyhow::{Context as _, Result, bail};

pub use self::{conflist::Entry, keeper::Keeper};
use self::{conflist::NetworkConfig, files::replace};
use super::TYPE;

/// Where the plugin is installed, and how it is configured.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Directory of plugins, such as `/opt/cni/bin`.
    pub bin_dir: PathBuf,
    /// Directory of network configurations, such as `/etc/cni/net.d`.
    pub conf_dir: PathBuf,
    /// The entry in the configuration.
    pub entry: Entry,
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
        Ok(done)
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
        let own = fs::read("/proc/self/exe").context("read this program")?;
        let path = self.binary();
        if fs::read(&path).is_ok_and(|installed| installed == own) && files::is_executable(&path) {
            return Ok(None);
        }
        replace(&path, &own, 0o755)?;
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
        let list = || {
            format!(
                "list {}; pass the directory of network configurations to --cni-conf-dir",
                self.conf_dir.display()
            )
        };
        let mut paths = Vec::new();
        for entry in fs::read_dir(&self.conf_dir).with_context(list)? {
            let path = entry.with_context(list)?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if matches!(extension, Some("conf" | "conflist" | "json")) && path.is_file() {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Removes the plugin and its entries. Returns what was done, in words.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn remove(&self, keep_binary: bool) -> Result<Vec<String>> {
        let mut done = Vec::new();
        let configurations = if self.conf_dir.exists() {
            self.configurations()?
        } else {
            Vec::new()
        };
        for path in configurations {
            let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            let Ok(mut config) = NetworkConfig::parse(&path, &text) else {
                continue;
            };
            if config.remove() {
                done.push(single::restore(&path, &config)?);
            }
        }
        let binary = self.binary();
        if !keep_binary && binary.exists() {
            fs::remove_file(&binary).with_context(|| format!("remove {}", binary.display()))?;
            done.push(format!("removed {}", binary.display()));
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
