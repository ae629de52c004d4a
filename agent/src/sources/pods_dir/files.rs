//! What is read of the directory. The helper reads it: its file system, and those that links in it lead to, may never
//! answer.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::{
    inotify::{AddWatchFlags, InitFlags, Inotify},
    memfd::{MFdFlags, memfd_create},
};
use serde::{Deserialize, Serialize};
use sidetrack_datapath::foreign_files::{self, Job};
use sidetrack_policy::manifest::read_text;

/// How many manifests a directory may have.
const MAX_FILES: usize = 16 << 10;
/// How long the directory's own file system may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long the one behind a link may take: all other files wait for it.
const LINK_TIMEOUT: Duration = Duration::from_millis(500);
/// A file that changed less than this ago may change again without another time of change.
pub(super) const STAMP_TTL: Duration = Duration::from_millis(100);

/// Shows whether a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    inode: u64,
    is_directory: bool,
    pub(super) size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Self {
        Self {
            inode: meta.ino(),
            is_directory: meta.is_dir(),
            size: meta.len(),
            written: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Whether a later change has another stamp: clocks of file systems are coarse.
    pub(super) fn is_final(&self) -> bool {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let changed = Duration::new(
            self.changed.0.max(0) as u64,
            self.changed.1.clamp(0, 999_999_999) as u32,
        );
        since.is_ok_and(|now| now > changed + STAMP_TTL)
    }
}

/// A manifest in the directory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: OsString,
    /// `None` of a link: what it leads to is looked at by itself.
    pub(super) stamp: Option<Stamp>,
}

/// The manifests of a directory, as JSON in memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListManifests(OsString);

impl Job for ListManifests {
    const NAME: &'static str = "manifests";
    type Answer = ();

    fn run(self) -> io::Result<((), Option<OwnedFd>)> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            if !is_manifest(Path::new(&name)) {
                continue;
            }
            if entries.len() == MAX_FILES {
                let text =
                    format!("it has more than {MAX_FILES} manifests, so none is read; remove some");
                return Err(io::Error::other(text));
            }
            // A file that has just been removed is none.
            if let Ok(meta) = entry.metadata() {
                let stamp = (!meta.is_symlink()).then(|| Stamp::of(&meta));
                entries.push(Entry { name, stamp });
            }
        }
        Ok(((), Some(in_memory(&serde_json::to_vec(&entries)?)?)))
    }
}

/// What a file or a directory is like, behind links.
#[derive(Debug, Serialize, Deserialize)]
pub struct LookAt(OsString);

impl Job for LookAt {
    const NAME: &'static str = "manifest-stamp";
    type Answer = Stamp;

    fn run(self) -> io::Result<(Stamp, Option<OwnedFd>)> {
        Ok((Stamp::of(&fs::metadata(self.0)?), None))
    }
}

/// What a file was like before it was read, and its text in memory or why it has none.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReadManifest(OsString);

impl Job for ReadManifest {
    const NAME: &'static str = "manifest";
    type Answer = (Stamp, Option<String>);

    fn run(self) -> io::Result<(Self::Answer, Option<OwnedFd>)> {
        let path = Path::new(&self.0);
        let stamp = Stamp::of(&fs::metadata(path)?);
        Ok(match read_text(path) {
            Ok(text) => ((stamp, None), Some(in_memory(text.as_bytes())?)),
            Err(error) => ((stamp, Some(format!("{error:#}"))), None),
        })
    }
}

/// Events of a directory's changes.
#[derive(Debug, Serialize, Deserialize)]
pub struct WatchDirectory(OsString);

impl Job for WatchDirectory {
    const NAME: &'static str = "watch-manifests";
    type Answer = ();

    fn run(self) -> io::Result<((), Option<OwnedFd>)> {
        let changes = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(Path::new(&self.0), changes)?;
        Ok(((), Some(inotify.into())))
    }
}

/// The manifests of a directory.
pub(super) fn list(directory: &Path) -> Result<Vec<Entry>> {
    let job = ListManifests(directory.into());
    let ((), memory) = foreign_files::wait(&holder(directory), &job, TIMEOUT)?;
    Ok(serde_json::from_str(&text_of(memory)?)?)
}

/// What the file behind a link is like.
pub(super) fn look_behind(link: &Path) -> io::Result<Stamp> {
    look(link, LINK_TIMEOUT)
}

/// The inode of a directory.
pub(super) fn inode(directory: &Path) -> io::Result<u64> {
    Ok(look(directory, TIMEOUT)?.inode)
}

/// Whether a path is a directory.
pub(super) fn is_directory(path: &Path) -> io::Result<bool> {
    Ok(look(path, TIMEOUT)?.is_directory)
}

fn look(path: &Path, timeout: Duration) -> io::Result<Stamp> {
    let (stamp, _) = foreign_files::wait(&holder(path), &LookAt(path.into()), timeout)?;
    Ok(stamp)
}

/// What a file was like before it was read, if its file system answers, and its text.
pub(super) fn read(path: &Path, is_link: bool) -> (Option<Stamp>, Result<String>) {
    let timeout = if is_link { LINK_TIMEOUT } else { TIMEOUT };
    let job = ReadManifest(path.into());
    match foreign_files::wait(&holder(path), &job, timeout) {
        Ok(((stamp, None), memory)) => (Some(stamp), text_of(memory)),
        Ok(((stamp, Some(problem)), _)) => (Some(stamp), Err(anyhow!(problem))),
        Err(error) => (None, Err(error.into())),
    }
}

/// A descriptor with the events of a directory's changes.
pub(super) fn watch(directory: &Path) -> io::Result<OwnedFd> {
    let job = WatchDirectory(directory.into());
    let ((), events) = foreign_files::wait(&holder(directory), &job, TIMEOUT)?;
    events.ok_or_else(|| io::Error::other("the descriptor is missing"))
}

fn in_memory(text: &[u8]) -> io::Result<OwnedFd> {
    let memory = memfd_create("manifests", MFdFlags::MFD_CLOEXEC)?;
    let mut memory = File::from(memory);
    memory.write_all(text)?;
    memory.rewind()?;
    Ok(memory.into())
}

fn text_of(memory: Option<OwnedFd>) -> Result<String> {
    let mut text = String::new();
    File::from(memory.context("the text is missing")?).read_to_string(&mut text)?;
    Ok(text)
}

/// Each path has a quota of its own, so that a link that hangs keeps no other file from being read.
fn holder(path: &Path) -> String {
    path.display().to_string()
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path
        .file_name()
        .is_none_or(|name| name.as_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}
