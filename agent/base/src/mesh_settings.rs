//! Settings for all pods: flags, and a file whose changes are followed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout};

use crate::{files, runtime::start_blocking};
use sidetrack_policy::mesh::{self, DefaultFlag, Mesh, VirtualInterfaces};

/// Where the last text that could be used is kept: beside the socket, in a directory of the node that outlives the
/// agent's pod.
#[must_use]
pub fn last_defaults(socket: &Path) -> PathBuf {
    socket.with_file_name("last-defaults.yaml")
}

/// Where the mesh's settings come from, and their last state.
#[derive(Debug)]
pub struct MeshSettings {
    config: Option<PathBuf>,
    defaults: Vec<DefaultFlag>,
    /// Without defaults.
    mesh: Mesh,
    /// The file as last read, or why it could not be.
    seen: Option<Result<String, String>>,
    /// What is wrong with it now.
    problem: Option<String>,
    /// Where the last text that could be used is kept, for an agent that starts with one that cannot.
    kept: Option<PathBuf>,
    /// A text that could not be kept yet.
    not_kept: Option<String>,
    /// A look at the file that has not ended: its disk may not answer.
    reading: Option<Reading>,
}

/// Since when, and where the answer comes.
type Reading = (Instant, oneshot::Receiver<Result<String, String>>);

/// How long a look at the file is waited for.
const WAIT_TIMEOUT: Duration = Duration::from_millis(100);
/// A look that lasts longer is a problem.
const LONG: Duration = Duration::from_secs(5);

impl MeshSettings {
    /// From flags, of which `mesh` has all but the defaults; nothing is read yet.
    #[must_use]
    pub fn new(config: Option<PathBuf>, defaults: Vec<DefaultFlag>, mesh: Mesh) -> Self {
        Self {
            config,
            defaults,
            mesh,
            seen: None,
            problem: None,
            kept: None,
            not_kept: None,
            reading: None,
        }
    }

    /// For pods of this node: whether its kernel shows by which interface a connection arrives, and whether it runs
    /// programs on a pod's interfaces.
    #[must_use]
    pub fn on_this_node(mut self, sees_interfaces: bool, runs_on_interfaces: bool) -> Self {
        self.mesh.sees_interfaces = sees_interfaces;
        if !runs_on_interfaces && self.mesh.virtual_interfaces == VirtualInterfaces::Full {
            self.mesh.virtual_interfaces = VirtualInterfaces::Refuse;
        }
        self
    }

    /// Reads the settings for the first time.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn read(&mut self) -> Result<Mesh> {
        let text = self.config.as_deref().map(mesh::read).transpose()?;
        let mesh = self.mesh(text.as_deref())?;
        self.seen = text.map(Ok);
        Ok(mesh)
    }

    /// Reads the settings for the first time on a node whose pods depend on them: if the file's text cannot be
    /// used, the last one that could (`kept` there) stays active, or else the built-in defaults are.
    ///
    /// # Errors
    /// If the file cannot be read, or flags cannot be used: both were written for this very start.
    pub fn start(&mut self, kept: PathBuf) -> Result<Mesh> {
        let read = self.config.as_deref().map(mesh::read).transpose()?;
        let Some(text) = read else {
            // What a later file is not to bring back.
            let _ = fs::remove_file(&kept);
            return self.mesh(None);
        };
        self.kept = Some(kept);
        let usable = self.mesh(Some(&text));
        self.seen = Some(Ok(text.clone()));
        let problem = match usable {
            Ok(mesh) => {
                if !self.keep(&text, false)() {
                    self.not_kept = Some(text);
                }
                return Ok(mesh);
            }
            Err(problem) => problem,
        };
        let last = self.kept.as_deref().and_then(|path| mesh::read(path).ok());
        let last = last.and_then(|text| self.mesh(Some(&text)).ok());
        let (mesh, which) = match last {
            Some(mesh) => (
                mesh,
                "earlier ones that could be used on this node stay active",
            ),
            None => (
                self.mesh(None)?,
                "no earlier ones are known on this node, so that Istio's own defaults are active",
            ),
        };
        let problem = format!("{problem:#}; {which}");
        tracing::error!("{problem}");
        self.problem = Some(problem);
        Ok(mesh)
    }

    /// What keeps a text that can be used, and answers whether it did. Without that only a start with a bad text is
    /// different.
    fn keep(&self, text: &str, is_again: bool) -> impl FnOnce() -> bool + Send + 'static {
        let kept = self.kept.clone();
        let text = text.to_owned();
        move || {
            // One that hangs is not overtaken.
            static KEEPING: Mutex<()> = Mutex::new(());
            let Some(_keeping) = KEEPING.try_lock() else {
                return false;
            };
            let Some(path) = kept else { return true };
            let written = files::replace(&path, text.as_bytes(), 0o600);
            if let Err(error) = &written
                && !is_again
            {
                tracing::warn!(
                    "keep the defaults for the next agent: {error:#}; it is tried again"
                );
            }
            written.is_ok()
        }
    }

    /// Keeps what is not kept yet.
    async fn keep_rest(&mut self, is_again: bool) {
        if let Some(text) = &self.not_kept {
            let kept = start_blocking(self.keep(text, is_again));
            let kept = timeout(WAIT_TIMEOUT, kept).await;
            if matches!(kept, Ok(Ok(true))) {
                self.not_kept = None;
            }
        }
    }

    /// The settings, if they have changed and can be used. Otherwise the previous ones stay active, and
    /// [`MeshSettings::problem`] says why.
    pub async fn changed(&mut self) -> Option<Mesh> {
        self.keep_rest(true).await;
        let path = self.config.clone()?;
        let read = move || mesh::read(&path).map_err(|error| format!("{error:#}"));
        let start = || (Instant::now(), start_blocking(read));
        let (_, reading) = self.reading.get_or_insert_with(start);
        let now = timeout(WAIT_TIMEOUT, reading).await.ok()?;
        self.reading = None;
        let now = now.ok()?;
        if self.seen.as_ref() == Some(&now) {
            return None;
        }
        let text = now.clone();
        self.seen = Some(now);
        let mesh = text.and_then(|text| {
            let mesh = self.mesh(Some(&text));
            let mesh = mesh.map_err(|error| format!("{error:#}"))?;
            Ok((mesh, text))
        });
        match mesh {
            Ok((mesh, text)) => {
                self.problem = None;
                self.not_kept = Some(text);
                self.keep_rest(false).await;
                tracing::info!(config = %self.config.as_ref()?.display(), "defaults read again");
                Some(mesh)
            }
            Err(error) => {
                let problem = format!("{error}; the previous defaults stay active");
                tracing::error!("{problem}");
                self.problem = Some(problem);
                None
            }
        }
    }

    /// What is wrong with the file now.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let reading = self.reading.as_ref();
        let config = self.config.as_ref().zip(reading);
        let hangs = config.filter(|(_, (since, _))| since.elapsed() > LONG);
        hangs.map_or_else(
            || self.problem.clone(),
            |(path, _)| {
                Some(format!(
                    "{} cannot be read, since its file system does not answer; the previous defaults stay active",
                    path.display()
                ))
            },
        )
    }

    fn mesh(&self, file: Option<&str>) -> Result<Mesh> {
        let file = self.config.as_deref().zip(file);
        let defaults = mesh::defaults(&self.defaults, file).context("the mesh's defaults")?;
        let mesh = self.mesh.clone();
        Ok(Mesh { defaults, ..mesh })
    }
}
