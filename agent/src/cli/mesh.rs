//! Flags about the mesh as a whole: the same for the agent and for offline `rules` and `explain`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::kernel::probe;
use sidetrack_policy::{
    mesh::{self, DefaultFlag, Mesh, VirtualInterfaces},
    select::Enroll,
};

#[derive(Clone, Debug, Args)]
pub(super) struct MeshFlags {
    /// File with defaults for all pods (YAML); the agent follows its changes
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// A default for all pods, such as excludeOutboundPorts=3306; wins over the file
    #[arg(long = "default", value_name = "NAME=VALUE", global = true)]
    defaults: Vec<DefaultFlag>,
    /// What becomes of pods that name virtual interfaces (kubevirtInterfaces)
    #[arg(long, value_enum, default_value = "refuse", global = true)]
    virtual_interfaces: VirtualInterfaces,
}

/// Where the mesh's settings come from, and what they last were.
#[derive(Debug)]
pub(super) struct Settings {
    flags: MeshFlags,
    enroll: Enroll,
    sees_interfaces: bool,
    /// The file as last read, or why it could not be.
    seen: Option<Result<String, String>>,
    /// What is wrong with it now.
    problem: Option<String>,
}

impl Settings {
    pub(super) fn new(flags: MeshFlags, enroll: Enroll) -> Self {
        Self {
            flags,
            enroll,
            sees_interfaces: true,
            seen: None,
            problem: None,
        }
    }

    /// For pods of this node, whose kernel may not tell interfaces.
    pub(super) fn on_this_node(self) -> Self {
        Self {
            sees_interfaces: probe::ingress_ifindex(),
            ..self
        }
    }

    /// Reads the settings for the first time.
    pub(super) fn read(&mut self) -> Result<Mesh> {
        let text = self.flags.config.as_deref().map(mesh::read).transpose()?;
        let mesh = self.mesh(text.as_deref())?;
        self.seen = text.map(Ok);
        Ok(mesh)
    }

    /// The settings, if they have changed and can be used; otherwise those in force stay, and
    /// [`Settings::problem`] says why.
    pub(super) fn changed(&mut self) -> Option<Mesh> {
        let path = self.flags.config.as_deref()?;
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
                tracing::info!(config = %self.flags.config.as_ref()?.display(), "defaults read again");
                Some(mesh)
            }
            Err(error) => {
                let problem = format!("{error}; the defaults in force stay");
                tracing::error!("{problem}");
                self.problem = Some(problem);
                None
            }
        }
    }

    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn mesh(&self, file: Option<&str>) -> Result<Mesh> {
        let file = self.flags.config.as_deref().zip(file);
        let defaults = mesh::defaults(&self.flags.defaults, file).context("the mesh's defaults")?;
        Ok(Mesh {
            enroll: self.enroll,
            virtual_interfaces: self.flags.virtual_interfaces,
            sees_interfaces: self.sees_interfaces,
            defaults,
        })
    }
}
