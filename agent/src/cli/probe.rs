//! `sidetrack probe`: what kubelet's probes ask, by the control socket.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use sidetrack_base::runtime::exit_code;

use super::{Places, output};
use crate::client::Client;
use crate::server::metrics_http::{LIVE, READY};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack probe live
  sidetrack probe ready")]
pub(super) struct Options {
    /// What to ask for
    #[arg(value_name = "CHECK", value_enum)]
    what: What,
    #[command(flatten)]
    places: Places,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Whether the reconciler makes progress
    Live,
    /// Whether the hooks are attached and the first full list of pods is applied
    Ready,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let path = match options.what {
        What::Live => LIVE,
        What::Ready => READY,
    };
    let (fine, text) = Client::new(&options.places.socket).text(path).await?;
    output::print(text)?;
    Ok(exit_code(fine))
}
