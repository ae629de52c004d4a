//! The CNI plugin: a pod starts only when it is intercepted, or known not to need it.
//!
//! Source: the Container Network Interface specification, versions 0.3.0 to 1.1.0. The plugin is chained
//! after the main plugin. It changes nothing in the pod, and passes the result of the plugins before it on
//! unchanged.
//!
//! The types of the protocol are declared here, because the result must pass through byte for byte and the
//! plugin reads only a few fields.

mod agent;
mod answer;
pub mod config;
pub mod credentials;
pub mod install;
mod plugin;
mod pod_netns;
mod request;
mod uninstalled;
pub mod upkeep;

use std::{
    io::{Read as _, Write as _},
    process::ExitCode,
};

use self::{
    answer::{Error, VERSIONS},
    request::Variables,
};

/// The plugin's type in a network configuration, and the name of its file.
pub const TYPE: &str = "sidetrack-cni";

/// Runs the plugin as a runtime runs it: a command in the environment, a network configuration on
/// stdin, the answer on stdout.
#[must_use]
pub fn main() -> ExitCode {
    let variables = Variables::of_process();
    let answer = read_stdin().and_then(|stdin| plugin::run(&variables, &stdin));
    let (text, code) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (error.to_json(), ExitCode::FAILURE),
    };
    let mut stdout = std::io::stdout().lock();
    // If the runtime has closed the pipe, nothing remains to do.
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
    code
}

fn read_stdin() -> Result<Vec<u8>, Error> {
    /// Network configurations have kilobytes. Capped so that a mistake cannot use up the node's memory.
    const MAX_SIZE: u64 = 4 << 20;
    let mut stdin = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_SIZE + 1)
        .read_to_end(&mut stdin)
        .map_err(|error| Error::io(format!("read the configuration from stdin: {error}")))?;
    if stdin.len() as u64 > MAX_SIZE {
        return Err(Error::decode(
            "the configuration on stdin is larger than 4 MiB".to_owned(),
        ));
    }
    Ok(stdin)
}
