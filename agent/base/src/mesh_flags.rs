//! Flags about the mesh as a whole: the same for the agent, the webhook, and offline `rules` and
//! `explain`.

use std::path::PathBuf;

use clap::Args;

use crate::mesh_settings::MeshSettings;
use sidetrack_policy::{
    mesh::{self, DefaultFlag, Mesh, Served, VirtualInterfaces},
    select::Enroll,
};

/// Over these flags in help.
const MESH: &str = "Mesh";

/// What all pods of the mesh have in common.
#[derive(Clone, Debug, Args)]
pub struct MeshFlags {
    /// File with defaults for all pods (YAML). A running agent applies its changes
    #[arg(long, value_name = "FILE", help_heading = MESH, global = true)]
    config: Option<PathBuf>,
    /// A default for all pods, such as excludeOutboundPorts=3306. It overrides the file
    #[arg(long = "default", value_name = "NAME=VALUE", help_heading = MESH, global = true)]
    defaults: Vec<DefaultFlag>,
    /// Accelerate the pods' connections to their sidecars (experimental); a pod's annotation
    /// sidetrack.dev/accelerate overrides it
    #[arg(long, help_heading = MESH, global = true)]
    accelerate: bool,
    /// How to treat traffic that only passes through a pod, and pods that name virtual interfaces
    /// (kubevirtInterfaces) [default: full]
    #[arg(long, value_name = "MODE", value_enum, help_heading = MESH, global = true)]
    virtual_interfaces: Option<VirtualInterfaces>,
    /// Whose sidecars to serve; repeat it for several meshes [default: auto]
    #[arg(
        long = "mesh",
        value_name = "MESH",
        value_enum,
        value_delimiter = ',',
        help_heading = MESH,
        global = true
    )]
    meshes: Vec<Served>,
    /// Serve pods in Istio's ambient mode as well (experimental)
    #[arg(long, help_heading = MESH, global = true)]
    ambient: bool,
}

impl MeshFlags {
    /// The settings they describe; nothing is read yet.
    ///
    /// # Errors
    /// If the flags contradict each other: that is wrong usage.
    pub fn settings(mut self, enroll: Enroll) -> Result<MeshSettings, String> {
        if self.accelerate {
            self.defaults.push("accelerate=true".parse()?);
        }
        // A file may have one of two values that fit each other.
        if self.config.is_none() {
            mesh::check(&self.defaults)?;
        }
        let mesh = Mesh {
            served: Served::meshes(&self.meshes)?,
            ambient: self.ambient,
            virtual_interfaces: self.virtual_interfaces.unwrap_or(VirtualInterfaces::Full),
            ..Mesh::new(enroll)
        };
        Ok(MeshSettings::new(self.config, self.defaults, mesh))
    }

    /// Whether pods in Istio's ambient mode are served.
    #[must_use]
    pub fn is_ambient(&self) -> bool {
        self.ambient
    }

    /// The first of them that was given.
    #[must_use]
    pub fn given(&self) -> Option<&'static str> {
        [
            (self.config.is_some(), "--config"),
            (!self.defaults.is_empty(), "--default"),
            (self.accelerate, "--accelerate"),
            (self.virtual_interfaces.is_some(), "--virtual-interfaces"),
            (!self.meshes.is_empty(), "--mesh"),
            (self.ambient, "--ambient"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
    }
}
