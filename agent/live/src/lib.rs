//! What is seen live of connections: the lines of a trace, and the view of `top`.
//!
//! The agent's command line and the kubectl plugin show the same, so it is here, without a kernel facility.
//! Everything but [`screen`] is state and text, which tests check without a terminal.

#![forbid(unsafe_code)]

mod counts;
pub mod documents;
pub mod history;
pub mod output;
pub mod refusals;
pub mod screen;
mod sidecar;
pub mod top;
pub mod trace;

pub use self::{
    counts::Connections,
    sidecar::{Queue, Sidecar, SidecarCounts, Sockets},
    trace::{AttendedLine, Process, TraceEvent, TraceLine},
};

/// Memory for people: `4.0 MiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 3] = ["KiB", "MiB", "GiB"];
    let mut unit = 0;
    let mut value = count as f64 / 1024.0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// What an errno means, in the words of libc.
#[must_use]
pub fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    words.to_owned()
}

#[cfg(test)]
mod tests;
