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
    io::{self, Read as _, Seek as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::conflist::NetworkConfig;
pub use self::{conflist::Entry, unmaintained::Unmaintained};
use super::{
    TYPE,
    credentials::{self, Credentials},
};
use sidetrack_base::files;

/// The longest network configuration that is read. Those that people have are of a few KiB.
const MAX_BYTES: u64 = 1 << 20;

/// Whether this process may still put the entry in place; held while it does. It does not cover the binary: where only the
/// disk of plugins hangs, the entry can still be removed.
pub static WRITES: Mutex<Writes> = Mutex::new(Writes::Allowed);

/// See [`WRITES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// It may.
    Allowed,
    /// The entry was removed for an uninstall.
    Ended,
}

/// What was done in files that others write as well, and what was not.
#[derive(Debug, Default)]
pub struct Work {
    /// What was done, in words; nothing if all was there.
    pub done: Vec<String>,
    /// The first thing that could not be done.
    pub problem: Option<Error>,
}

impl Work {
    /// Notes what was done or why it was not; answers whether there is no problem with it.
    fn note(&mut self, step: Result<Option<String>>) -> bool {
        match step {
            Ok(done) => {
                self.done.extend(done);
                true
            }
            Err(error) => {
                self.problem.get_or_insert(error);
                false
            }
        }
    }
}

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
    /// What the directories are on the node, where the agent's container has them mounted.
    pub mounts: Vec<Mount>,
}

/// A directory of the node that is mounted somewhere. The mount stays what it was, also where the node has another directory
/// of that name, or its link leads elsewhere, as after an upgrade of k3s.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mount {
    /// Where it is mounted.
    pub seen: PathBuf,
    /// The same as the node sees it.
    pub on_node: PathBuf,
    /// Where the node's files are, such as `/proc/1/root`.
    pub root: PathBuf,
}

const PATH: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

impl Mount {
    /// Whether the node has this directory there; `None` if that is not known, as without hostPID.
    fn is_current(&self) -> Option<bool> {
        let id = |file: File| {
            let meta = file.metadata().ok()?;
            Some((meta.dev(), meta.ino()))
        };
        let on_node = self.open_on_node(Path::new("")).ok()?;
        let seen = open(&self.seen, PATH, Mode::empty()).ok()?;
        Some(id(seen.into())? == id(on_node.into())?)
    }

    /// Opens a file of the directory as the node sees it: links on the node begin at the node's root.
    fn open_on_node(&self, name: &Path) -> nix::Result<OwnedFd> {
        open_in(&self.root, &self.on_node.join(name))
    }
}

/// Opens a file as a process with this root would.
fn open_in(root: &Path, path: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(PATH)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    openat2(open(root, PATH, Mode::empty())?, path, how)
}

impl Installation {
    /// Puts everything in place. What cannot be put in place stays as it was.
    #[must_use]
    pub fn install(&self) -> Work {
        let mut work = Work::default();
        // The binary first, because the entry names it. One that was there before serves until it can be replaced.
        if !work.note(self.put_binary()) && !files::is_executable(&self.binary()) {
            return work;
        }
        let writes = WRITES.lock();
        if *writes == Writes::Ended || !self.put_entry(&mut work) {
            return work;
        }
        // Last: without them the entry works, except where sidetrack is uninstalled and no agent removes it.
        if let Some(credentials) = &self.credentials {
            let put = credentials.put(&self.conf_dir);
            let put = put.map(|put| put.then(|| format!("put {}", self.kubeconfig().display())));
            work.note(put);
        }
        work
    }

    fn kubeconfig(&self) -> PathBuf {
        self.conf_dir.join(credentials::FILE)
    }

    fn binary(&self) -> PathBuf {
        self.bin_dir.join(TYPE)
    }

    fn put_binary(&self) -> Result<Option<String>> {
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
        Ok(Some(format!("put {}", path.display())))
    }

    /// Adds the entry to the configuration that runtimes use. Answers whether it is in one.
    fn put_entry(&self, work: &mut Work) -> bool {
        let (used, before) = match self.active() {
            Ok(Active { used, before }) => (used, before),
            Err(error) => (None, Some(error)),
        };
        let is_added = match used {
            Some((path, config)) => work.note(self.add_to(&path, config)),
            None => false,
        };
        work.note(match before {
            Some(problem) => Err(problem),
            None if is_added || work.problem.is_some() => Ok(None),
            None => Err(anyhow!(
                "no network configuration is in {} yet; the plugin is added as soon as the network's own is there",
                self.conf_dir.display()
            )),
        });
        is_added
    }

    fn add_to(&self, path: &Path, mut config: NetworkConfig) -> Result<Option<String>> {
        let was_there = config.has_plugin();
        let context = || format!("add the plugin to {}", path.display());
        if !config.put(&self.entry).with_context(context)? {
            return Ok(None);
        }
        if !config.is_list() {
            return single::replace_by_list(path, &config).map(Some);
        }
        if !was_there {
            single::discard_saved(path)?;
        }
        config.write(path)?;
        Ok(Some(format!("added to {}", path.display())))
    }

    /// What runtimes use: the first valid configuration by name. If it replaced another file, and another program has
    /// written that file again, it is that file.
    fn active(&self) -> Result<Active> {
        let mut before = None;
        for path in self.configurations()? {
            let problem = match read(&path) {
                Ok(None) => continue,
                Err(_) if self.leads_nowhere(&path) => continue,
                Ok(Some(text)) => match NetworkConfig::parse(&path, &text) {
                    Ok(config) if config.has_plugins() => {
                        let used = single::rewritten(&path).unwrap_or((path, config));
                        return Ok(Active {
                            used: Some(used),
                            before,
                        });
                    }
                    Ok(_) => anyhow!("{} has no plugins in it", path.display()),
                    // Some runtimes skip it as well; others use no configuration while it exists.
                    Err(error) => {
                        tracing::debug!("{}: {error:#}", path.display());
                        continue;
                    }
                },
                Err(error) => error,
            };
            before.get_or_insert(problem.context(
                "the container runtime may use a network configuration that sidetrack cannot add its plugin to, and then pods start without it: remove that file, or give it a name that sorts last",
            ));
        }
        Ok(Active { used: None, before })
    }

    /// Whether a file is a link that leads nowhere on the node either.
    fn leads_nowhere(&self, path: &Path) -> bool {
        let mount = self.mounts.iter().find(|mount| mount.seen == self.conf_dir);
        let name = path.file_name().map(Path::new).unwrap_or(path);
        path.is_symlink()
            && !path.exists()
            && mount.is_none_or(|mount| {
                mount.is_current() == Some(true)
                    && mount.open_on_node(name).err() == Some(Errno::ENOENT)
            })
    }

    fn configurations(&self) -> Result<Vec<PathBuf>> {
        configurations(&self.conf_dir)
    }

    /// Removes this agent's entries, and the plugin unless another agent's entry needs it.
    #[must_use]
    pub fn remove(&self, keep_binary: bool) -> Work {
        let socket = self.entry.socket();
        let mut work = remove_entries(&self.conf_dir, socket);
        // What could not be read or written may need it.
        if !keep_binary && work.problem.is_none() {
            work.note(self.remove_binary());
        }
        work
    }

    fn remove_binary(&self) -> Result<Option<String>> {
        let binary = self.binary();
        let entries = Entries::of_socket(&self.conf_dir, self.entry.socket())?;
        if !entries.other.is_empty() || !binary.exists() {
            return Ok(None);
        }
        fs::remove_file(&binary).with_context(|| format!("remove {}", binary.display()))?;
        Ok(Some(format!("removed {}", binary.display())))
    }
}

/// Which configuration runtimes use.
struct Active {
    /// The first one that can have the plugin.
    used: Option<(PathBuf, NetworkConfig)>,
    /// That another one, which sorts before it, may be what they use.
    before: Option<Error>,
}

/// Removes the entries that ask the agent on this socket, and the credentials unless another agent's entry needs
/// them; the binary stays. A file that cannot be read or written keeps no other from being cleaned.
#[must_use]
pub fn remove_entries(conf_dir: &Path, socket: &Path) -> Work {
    let mut work = Work::default();
    if !conf_dir.exists() {
        return work;
    }
    let found = match valid(conf_dir) {
        Ok(found) => found,
        Err(problem) => {
            work.problem = Some(problem);
            return work;
        }
    };
    let mut needed = found.unread.is_some();
    for (path, mut config) in found.valid {
        if config.remove(socket) {
            needed |= !work.note(single::restore(&path, &config).map(Some));
        }
        needed |= config.needs(credentials::FILE);
    }
    if !needed {
        let path = conf_dir.join(credentials::FILE);
        let removed = Credentials::remove(conf_dir);
        work.note(removed.map(|it| it.then(|| format!("removed {}", path.display()))));
    }
    work.note(found.unread.map_or(Ok(None), Err));
    work
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
    /// Why one of the files could not be read.
    pub unread: Option<Error>,
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
        let found = valid(conf_dir)?;
        all.unread = found.unread;
        for (path, mut config) in found.valid {
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

/// The configurations of a directory.
#[derive(Default)]
struct Configurations {
    /// Those that can be parsed.
    valid: Vec<(PathBuf, NetworkConfig)>,
    /// Why the first of those that are files cannot be read.
    unread: Option<Error>,
}

fn valid(conf_dir: &Path) -> Result<Configurations> {
    let mut found = Configurations::default();
    for path in configurations(conf_dir)? {
        match read(&path) {
            Ok(Some(text)) => {
                if let Ok(config) = NetworkConfig::parse(&path, &text) {
                    found.valid.push((path, config));
                }
            }
            // The entry is never behind a link that leads nowhere: a write replaces the link.
            Err(_) if !path.exists() => {}
            Ok(None) => {}
            Err(error) => drop(found.unread.get_or_insert(error)),
        }
    }
    Ok(found)
}

/// The text of a file; `None` if it has been removed.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let shown = path.display();
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            ensure!(
                !path.is_symlink(),
                "{shown} is a link to a file that this program does not see"
            );
            return Ok(None);
        }
        opened => opened.with_context(|| format!("read {shown}"))?,
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut text)
        .with_context(|| format!("read {shown}"))?;
    ensure!(
        text.len() as u64 <= MAX_BYTES,
        "{shown} has more than {MAX_BYTES} bytes, which are read of a network configuration"
    );
    Ok(Some(text))
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
        // A link may lead to a file that only the runtime sees.
        let is_file = path.is_file() || path.is_symlink() && !path.exists();
        if matches!(extension, Some("conf" | "conflist" | "json")) && is_file {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;
