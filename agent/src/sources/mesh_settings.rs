//! Settings for all pods: flags, and a file whose changes are followed.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::kernel::probe;
use sidetrack_policy::{
    mesh::{self, DefaultFlag, Mesh, VirtualInterfaces},
    select::Enroll,
};

/// Where the mesh's settings come from, and their last state.
#[derive(Clone, Debug)]
pub struct MeshSettings {
    config: Option<PathBuf>,
    defaults: Vec<DefaultFlag>,
    virtual_interfaces: VirtualInterfaces,
    enroll: Enroll,
    sees_interfaces: bool,
    /// The file as last read, or why it could not be.
    seen: Option<Result<String, String>>,
    /// What is wrong with it now.
    problem: Option<String>,
}

impl MeshSettings {
    /// From flags; nothing is read yet.
    #[must_use]
    pub fn new(
        config: Option<PathBuf>,
        defaults: Vec<DefaultFlag>,
        virtual_interfaces: VirtualInterfaces,
        enroll: Enroll,
    ) -> Self {
        Self {
            config,
            defaults,
            virtual_interfaces,
            enroll,
            sees_interfaces: true,
            seen: None,
            problem: None,
        }
    }

    /// For pods of this node, whose kernel may not show by which interface a connection arrives.
    #[must_use]
    pub fn on_this_node(self) -> Self {
        Self {
            sees_interfaces: probe::ingress_ifindex(),
            ..self
        }
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

    /// The settings, if they have changed and can be used. Otherwise the previous ones stay active, and
    /// [`MeshSettings::problem`] says why.
    pub fn changed(&mut self) -> Option<Mesh> {
        let path = self.config.as_deref()?;
        let now = mesh::read(path).map_err(|error| format!("{error:#}"));
        if self.seen.as_ref() == Some(&now) {
            return None;
        }
        let text = now.clone();
        self.seen = Some(now);
        let mesh = text.and_then(|text| {
            let mesh = self.mesh(Some(&text));
            mesh.map_err(|error| format!("{error:#}"))
        });
        match mesh {
            Ok(mesh) => {
                self.problem = None;
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
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn mesh(&self, file: Option<&str>) -> Result<Mesh> {
        let file = self.config.as_deref().zip(file);
        let defaults = mesh::defaults(&self.defaults, file).context("the mesh's defaults")?;
        Ok(Mesh {
            enroll: self.enroll,
            virtual_interfaces: self.virtual_interfaces,
            sees_interfaces: self.sees_interfaces,
            defaults,
        })
    }
}
