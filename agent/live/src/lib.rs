//! What is seen live of connections: the lines of a trace, and the view of `top`.
//!
//! The agent's command line and the kubectl plugin show the same, so it is here, without a kernel facility.
//! Everything but [`screen`] is state and text, which tests check without a terminal.

mod counts;
pub mod screen;
pub mod top;
pub mod trace;

pub use self::{
    counts::Connections,
    trace::{AttendedLine, Process, TraceEvent, TraceLine},
};

/// What an errno means, in the words of libc.
#[must_use]
pub fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    words.to_owned()
}

/// Whether a sidecar listens: one word if both of its ports are alike. `outbound` is unknown if one listens, or
/// has listened, on loopback.
#[must_use]
pub fn listener(not_yet: bool, outbound: Option<bool>, inbound: bool) -> &'static str {
    if not_yet {
        return "not yet";
    }
    match (outbound, inbound) {
        (Some(true), true) => "up",
        (Some(false), false) => "down",
        (Some(true), false) => "out",
        (Some(false), true) => "in",
        // It is or was on loopback, where inbound connections never go.
        (None, true) => "in, out unknown",
        (None, false) => "unknown",
    }
}
