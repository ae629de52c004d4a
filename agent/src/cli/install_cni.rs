//! `sidetrack install-cni`: put the CNI plugin in place, or remove it.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use clap::Args;

use sidetrack_base::duration::duration_within;

use super::{SOCKET, output, pod_name};
use crate::cni::{
    config::MAX_SECONDS,
    install::{Entries, Entry, Installation, Work},
};

/// Where a network's plugins and configurations are. The agent has the same flags: given them, it
/// keeps the plugin in place.
#[derive(Clone, Debug, Args)]
pub(super) struct CniFlags {
    /// How long a starting pod waits for the agent's answer, 1s to 110s in whole seconds [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = cni_timeout)]
    cni_timeout: Option<Duration>,
    /// Namespaces whose pods may start without an agent, separated by commas [default:
    /// kube-system,sidetrack-system]
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',', value_parser = namespace_or_none)]
    cni_exclude_namespaces: Option<Vec<String>>,
}

/// Where nodes usually have network configurations.
pub(super) const CONF_DIR: &str = "/etc/cni/net.d";
/// Defaults of [`CniFlags`].
const TIMEOUT: Duration = Duration::from_secs(10);
/// The second is where the documentation installs the agent: it must start without itself.
const EXCLUDED: [&str; 2] = ["kube-system", "sidetrack-system"];

impl CniFlags {
    /// Whether any is given.
    pub(super) fn any(&self) -> bool {
        self.cni_timeout.is_some() || self.cni_exclude_namespaces.is_some()
    }

    /// What follows from the flags; `own` is the agent's namespace.
    pub(super) fn installation(
        &self,
        bin_dir: &Path,
        conf_dir: &Path,
        socket: &Path,
        own: Option<&str>,
    ) -> Installation {
        let usual = || EXCLUDED.map(str::to_owned).into();
        let mut excluded: Vec<String> = self.cni_exclude_namespaces.clone().unwrap_or_else(usual);
        excluded.extend(own.map(str::to_owned));
        for name in &mut excluded {
            *name = name.trim().to_owned();
        }
        excluded.retain(|name| !name.is_empty());
        excluded.sort();
        excluded.dedup();
        Installation {
            bin_dir: bin_dir.to_owned(),
            conf_dir: conf_dir.to_owned(),
            entry: Entry::new(
                socket,
                self.cni_timeout.unwrap_or(TIMEOUT).as_secs(),
                excluded,
            ),
            credentials: None,
            mounts: Vec::new(),
        }
    }
}

/// One of a list's names. A list may be empty, and have spaces.
fn namespace_or_none(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Ok(String::new()),
        name => pod_name::namespace(name),
    }
}

/// A path that is the same for every process of the node.
pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(
        "write an absolute path: the container runtime starts the plugin in a directory of its own"
            .to_owned(),
    )
}

/// Whole seconds, which is what the network configuration holds.
fn cni_timeout(text: &str) -> Result<Duration, String> {
    let timeout = duration_within(text, 1..=MAX_SECONDS)?;
    if timeout.subsec_nanos() == 0 {
        Ok(timeout)
    } else {
        Err("write whole seconds, such as 10s".to_owned())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack install-cni --cni-timeout 20s
  sidetrack install-cni --remove")]
pub(super) struct Options {
    /// Directory of the network's plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    cni_bin_dir: PathBuf,
    /// Directory of network configurations; the first by name is the one in use
    #[arg(long, value_name = "DIR", default_value = CONF_DIR)]
    cni_conf_dir: PathBuf,
    #[command(flatten)]
    flags: CniFlags,
    /// Remove it instead
    #[arg(long, conflicts_with_all = ["cni_timeout", "cni_exclude_namespaces"])]
    remove: bool,
    /// Leave the binary: CRI-O runs the plugins a pod was started with when it stops it
    #[arg(long, requires = "remove")]
    keep_binary: bool,
    /// The agent's socket, as the node sees it
    #[arg(long, value_name = "PATH", default_value = SOCKET, value_parser = absolute)]
    socket: PathBuf,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let installation = options.flags.installation(
        &options.cni_bin_dir,
        &options.cni_conf_dir,
        &options.socket,
        None,
    );
    let Work { done, problem } = if options.remove {
        installation.remove(options.keep_binary)
    } else {
        installation.install()
    };
    if done.is_empty() && problem.is_none() {
        output::print(if options.remove {
            "nothing to remove"
        } else {
            "everything is in place"
        })?;
    }
    for what in done {
        output::print(what)?;
    }
    if let Some(problem) = problem {
        return Err(problem);
    }
    if options.remove && options.cni_conf_dir.exists() {
        for path in Entries::of_socket(&options.cni_conf_dir, &options.socket)?.other {
            output::print(format_args!(
                "kept the entry in {}: it asks an agent on another socket; pass that one to --socket",
                path.display()
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
