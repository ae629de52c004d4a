//! `sidetrack foreign-files`: the agent's helper. Only an agent starts it.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use sidetrack_datapath::{
    foreign_files::{Runner, serve},
    netns::{OpenNetns, resolv_conf::ResolvConf},
};

use crate::{
    cni::upkeep::{Removal, Turn},
    sources::pods_dir::{LinkedStamp, LinkedText},
};

/// Everything that an agent may ask of it.
const RUNNERS: &[Runner] = &[
    Runner::of::<ResolvConf>(),
    Runner::of::<OpenNetns>(),
    Runner::of::<LinkedStamp>(),
    Runner::of::<LinkedText>(),
    Runner::of::<Turn>(),
    Runner::of::<Removal>(),
];

pub(super) fn run() -> Result<ExitCode> {
    serve(RUNNERS).context("answer the agent, which has to start this")?;
    Ok(ExitCode::SUCCESS)
}
