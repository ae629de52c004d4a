//! What sidetrack's programs have in common: durations, files, logs, servers, and the mesh's settings.
//!
//! Nothing here depends on the kernel's programs or on single pods.

#![forbid(unsafe_code)]

// From the bottom up: no module uses one that stands below it in this list.
pub mod api_server;
pub mod duration;
pub mod files;
pub mod log;
pub mod runtime;
pub mod socket_file;

pub mod http;
pub mod mesh_settings;

pub mod mesh_flags;

/// This build's version: the package's, unless SIDETRACK_VERSION was set for the build.
pub const VERSION: &str = match option_env!("SIDETRACK_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
