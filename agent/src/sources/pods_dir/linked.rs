//! Manifests behind links, which may lead to any file system: the helper looks at them and reads them.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use sidetrack_datapath::foreign_files::{self, Job};
use sidetrack_policy::manifest::read_text;

use super::directory::Stamp;

/// All files of the directory wait for it.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What the file behind a link is like.
#[derive(Debug, Serialize, Deserialize)]
pub struct LinkedStamp(PathBuf);

impl Job for LinkedStamp {
    const NAME: &'static str = "manifest-stamp";
    type Answer = Stamp;

    fn run(self) -> io::Result<(Stamp, Option<OwnedFd>)> {
        Ok((Stamp::of(&fs::metadata(self.0)?), None))
    }
}

/// The text of the file behind a link, in memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct LinkedText(PathBuf);

impl Job for LinkedText {
    const NAME: &'static str = "manifest";
    type Answer = ();

    fn run(self) -> io::Result<((), Option<OwnedFd>)> {
        let text = read_text(&self.0).map_err(|error| io::Error::other(format!("{error:#}")))?;
        let memory = memfd_create("manifest", MFdFlags::MFD_CLOEXEC)?;
        let mut memory = File::from(memory);
        memory.write_all(text.as_bytes())?;
        memory.rewind()?;
        Ok(((), Some(memory.into())))
    }
}

/// What a file is like; `None` if that cannot be read.
pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let own = fs::symlink_metadata(path).ok()?;
    if !own.is_symlink() {
        return Some(Stamp::of(&own));
    }
    let stamp = foreign_files::wait(&holder(path), &LinkedStamp(path.to_owned()), TIMEOUT);
    stamp.ok().map(|(stamp, _)| stamp)
}

/// The text of a file, within bounds.
pub(super) fn text(path: &Path) -> Result<String> {
    if !is_link(path) {
        return read_text(path);
    }
    let text = foreign_files::wait(&holder(path), &LinkedText(path.to_owned()), TIMEOUT);
    let ((), memory) = text?;
    let mut text = String::new();
    File::from(memory.context("the text is missing")?).read_to_string(&mut text)?;
    Ok(text)
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink())
}

/// Each link has a quota of its own.
fn holder(path: &Path) -> String {
    path.display().to_string()
}
