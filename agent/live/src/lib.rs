//! What is seen live of connections: the lines of a trace, and the view of `top`.
//!
//! The agent's command line and the kubectl plugin show the same, so it is here, without a kernel facility.
//! Everything but [`screen`] is state and text, which tests check without a terminal.

mod counts;
pub mod history;
pub mod screen;
mod sidecar;
pub mod top;
pub mod trace;

pub use self::{
    counts::Connections,
    sidecar::{Queue, Sidecar, SidecarCounts, Sockets},
    trace::{AttendedLine, Process, TraceEvent, TraceLine},
};

/// What an errno means, in the words of libc.
#[must_use]
pub fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    words.to_owned()
}

#[cfg(test)]
mod tests;
