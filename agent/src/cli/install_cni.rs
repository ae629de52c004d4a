//! `sidetrack install-cni`: put the CNI plugin in place, or take it away.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;

use super::{Places, output};
use crate::cni::{
    config::MOST_SECONDS,
    install::{Entry, Installation},
};

/// Where a network's plugins and configurations are. The agent has the same flags: given them, it
/// keeps the plugin in place.
#[derive(Clone, Debug, Args)]
pub(super) struct CniFlags {
    /// Longest wait of a starting pod for the agent's answer, in seconds, 1 to 110
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=MOST_SECONDS))]
    cni_timeout: u64,
    /// Namespaces whose pods start also when no agent answers; commas between them
    #[arg(
        long,
        value_name = "NAMESPACES",
        value_delimiter = ',',
        default_value = "kube-system"
    )]
    cni_exclude_namespaces: Vec<String>,
    /// The agent's socket as the node sees it [default: that of --socket]
    #[arg(long, value_name = "PATH")]
    cni_socket: Option<PathBuf>,
}

impl CniFlags {
    /// What follows from the flags; `own` is the agent's namespace.
    pub(super) fn installation(
        &self,
        bin_dir: PathBuf,
        conf_dir: PathBuf,
        places: &Places,
        own: Option<&str>,
    ) -> Installation {
        let mut excluded: Vec<String> = self
            .cni_exclude_namespaces
            .iter()
            .map(|name| name.trim().to_owned())
            .chain(own.map(str::to_owned))
            .filter(|name| !name.is_empty())
            .collect();
        excluded.sort();
        excluded.dedup();
        let socket = self.cni_socket.as_ref().unwrap_or(&places.socket);
        Installation {
            bin_dir,
            conf_dir,
            entry: Entry::new(socket, self.cni_timeout, excluded),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Directory of the network's plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    cni_bin_dir: PathBuf,
    /// Directory of network configurations; the first by name is the one in use
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    #[command(flatten)]
    flags: CniFlags,
    /// Take it away instead
    #[arg(long)]
    remove: bool,
    /// Leave the binary: CRI-O runs the plugins a pod was started with when it stops it
    #[arg(long, requires = "remove")]
    keep_binary: bool,
    #[command(flatten)]
    places: Places,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let installation = options.flags.installation(
        options.cni_bin_dir.clone(),
        options.cni_conf_dir.clone(),
        &options.places,
        None,
    );
    let done = if options.remove {
        installation.remove(options.keep_binary)?
    } else {
        installation.install()?
    };
    if done.is_empty() {
        output::print(if options.remove {
            "nothing to remove"
        } else {
            "everything is in place"
        })?;
    }
    for what in done {
        output::print(what)?;
    }
    Ok(ExitCode::SUCCESS)
}
