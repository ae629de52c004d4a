//! Logs on stderr, and colors.

mod queue;

use std::{
    env,
    ffi::OsStr,
    fs::File,
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
};

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt};

pub use self::queue::Log;

/// Form of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line per event
    Text,
    /// One JSON object per event
    Json,
}

/// Logs to stderr. `RUST_LOG` sets the filter; the kernel programs' records have the target
/// `sidetrack_core`. The client of the API server logs every failed attempt; the watches say once what is wrong.
///
/// # Errors
/// If no thread can be made that writes it.
pub fn start(format: LogFormat) -> io::Result<Log> {
    // Not the one that panics are written to: it is locked while a line is.
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let log_lines = Log::start(stderr)?;
    let writer = log_lines.writer();
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"));
    let log = fmt()
        .with_env_filter(filter)
        .with_writer(move || writer.clone())
        // A reader of the log that has gone away must not end the process.
        .log_internal_errors(false)
        .with_ansi(wants_color(io::stderr().is_terminal()));
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(log_lines)
}

/// Whether a stream gets colors: a terminal, unless NO_COLOR is set (no-color.org).
pub fn wants_color(is_terminal: bool) -> bool {
    color(is_terminal, env::var_os("NO_COLOR").as_deref())
}

fn color(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests;
