//! Puts the plugin behind the network's own, keeps it there, takes it away.
//!
//! Invariants: a runtime that looks at any moment finds a whole configuration and a whole binary; what
//! others wrote into the configuration stays as it is; the entry goes before the binary does.

mod conflist;
mod files;

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

pub use self::conflist::Entry;
use self::{conflist::NetworkConfig, files::replace};
use super::TYPE;

/// How long after a failure it is tried again although nobody has changed anything.
const AGAIN: Duration = Duration::from_secs(10);
/// What a configuration is renamed to that has no room for a second plugin.
const SAVED: &str = ".sidetrack-saved";

/// Where the plugin goes, and what it is told.
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
    /// Puts everything in place; what was done, in words, nothing if all was there.
    ///
    /// # Errors
    /// If it cannot be; what was in place stays.
    pub fn install(&self) -> Result<Vec<String>> {
        let mut done = Vec::new();
        // First what the entry names.
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
        if fs::read(&path).is_ok_and(|there| there == own) && files::is_executable(&path) {
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
        // Runtimes take the first by name: the old one must be gone for the new one to be it.
        let list = path.with_extension("conflist");
        // One with the plugin in it came of an earlier state of this one.
        if list.exists() && !has_plugin(&list) {
            bail!(
                "{} is in use, and {} is beside it: remove one of the two",
                path.display(),
                list.display()
            );
        }
        replace(&list, config.text().as_bytes(), files::mode(&path))?;
        let saved = with_suffix(&path, SAVED);
        fs::rename(&path, &saved)
            .with_context(|| format!("rename {} to {}", path.display(), saved.display()))?;
        Ok(Some(format!(
            "added to {}, which takes the place of {}",
            list.display(),
            path.display()
        )))
    }

    /// The configuration that runtimes use: the first by name that is one. Where that took the place of
    /// another, and somebody has written the other one again, it is the other one.
    fn active(&self) -> Result<Option<(PathBuf, NetworkConfig)>> {
        for path in self.configurations()? {
            match fs::read(&path) {
                Ok(text) => match NetworkConfig::parse(&path, &text) {
                    Ok(config) => return Ok(Some(written_again(&path).unwrap_or((path, config)))),
                    // Some runtimes pass over it as well; others use none as long as it is there.
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

    /// Takes everything away; what was done, in words.
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
            if config.take_away() {
                done.push(give_back(&path, &config)?);
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

/// The single plugin that a list took the place of, if it is there again.
fn written_again(list: &Path) -> Option<(PathBuf, NetworkConfig)> {
    ["conf", "json"].into_iter().find_map(|extension| {
        let path = list.with_extension(extension);
        if path == list || !with_suffix(&path, SAVED).exists() || !has_plugin(list) {
            return None;
        }
        let config = NetworkConfig::parse(&path, &fs::read(&path).ok()?).ok()?;
        Some((path, config))
    })
}

/// Whether it is a list with the plugin in it.
fn has_plugin(list: &Path) -> bool {
    let config = fs::read(list).map(|text| NetworkConfig::parse(list, &text));
    matches!(config, Ok(Ok(config)) if config.has_plugin())
}

/// Writes a configuration without the plugin, or renames back what it took the place of.
fn give_back(path: &Path, config: &NetworkConfig) -> Result<String> {
    for extension in ["conf", "json"] {
        let before = path.with_extension(extension);
        let saved = with_suffix(&before, SAVED);
        if saved.exists() {
            // What its owner has written since counts.
            let done = if before.exists() {
                fs::remove_file(&saved)
            } else {
                fs::rename(&saved, &before)
            };
            done.with_context(|| format!("put {} back as {}", saved.display(), before.display()))?;
            fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
            return Ok(format!(
                "removed {}, {} is back",
                path.display(),
                before.display()
            ));
        }
    }
    replace(path, config.text().as_bytes(), files::mode(path))?;
    Ok(format!("removed from {}", path.display()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Keeps the plugin in place: other tools write the same configuration.
#[derive(Debug)]
pub struct Keeper {
    installation: Installation,
    /// What was there when it was last looked at.
    seen: Option<Vec<Seen>>,
    problem: Option<String>,
    /// When to try again what has failed.
    again: Instant,
}

/// What tells whether somebody has written a file.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    path: PathBuf,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Keeper {
    /// Nothing is done yet.
    #[must_use]
    pub fn new(installation: Installation) -> Self {
        Self {
            installation,
            seen: None,
            problem: None,
            again: Instant::now(),
        }
    }

    /// Repairs what is not as it should be; to be called about twice a second.
    pub fn turn(&mut self) {
        let now = self.look();
        let due = self.problem.is_some() && self.again <= Instant::now();
        if self.seen.as_ref() == Some(&now) && !due {
            return;
        }
        match self.installation.install() {
            Ok(done) => {
                let in_place = done.is_empty();
                for what in done {
                    tracing::info!("CNI plugin: {what}");
                }
                self.problem = None;
                // What was written is looked at once more: somebody else may write at the same time.
                self.seen = in_place.then_some(now);
            }
            Err(error) => {
                let problem = format!("CNI plugin: {error:#}");
                if self.problem.as_ref() != Some(&problem) {
                    tracing::error!("{problem}");
                }
                self.problem = Some(problem);
                self.seen = Some(now);
                self.again = Instant::now() + AGAIN;
            }
        }
    }

    /// Whether everything was in place when it was last looked at.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.seen.is_some() && self.problem.is_none()
    }

    /// What is wrong.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn look(&self) -> Vec<Seen> {
        let configurations = self.installation.configurations().unwrap_or_default();
        let all = configurations
            .into_iter()
            .chain([self.installation.binary()]);
        all.filter_map(|path| {
            let meta = fs::metadata(&path).ok()?;
            Some(Seen {
                path,
                inode: meta.ino(),
                size: meta.size(),
                changed: (meta.ctime(), meta.ctime_nsec()),
            })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
