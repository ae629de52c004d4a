//! `sidetrack foreign-files`: the agent's helper. Only an agent starts it.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use sidetrack_datapath::{
    foreign_files::{Runner, serve},
    netns::{OpenNetns, resolv_conf::ResolvConf},
};

use crate::{
    cni::upkeep::{Removal, Turn},
    sources::pods_dir::{ListManifests, LookAt, ReadManifest, WatchDirectory},
};

/// Everything that an agent may ask of it.
const RUNNERS: &[Runner] = &[
    Runner::of::<ResolvConf>(),
    Runner::of::<OpenNetns>(),
    Runner::of::<ListManifests>(),
    Runner::of::<LookAt>(),
    Runner::of::<ReadManifest>(),
    Runner::of::<WatchDirectory>(),
    Runner::of::<Turn>(),
    Runner::of::<Removal>(),
];

pub(super) fn run() -> Result<ExitCode> {
    serve(RUNNERS).context("answer the agent, which has to start this")?;
    Ok(ExitCode::SUCCESS)
}
