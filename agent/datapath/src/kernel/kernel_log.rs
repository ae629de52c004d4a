//! Forwards the log of the kernel programs to the agent's log.

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::{Interest, unix::AsyncFd};

/// How much the kernel programs log. The level is a read-only global, so that the verifier removes the code
/// of levels that are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLevel(pub(super) u8);

impl LogLevel {
    /// Events that must not happen.
    pub const WARNINGS: Self = Self(aya_log::Level::Warn as u8);
    /// Every decision as well.
    pub const DECISIONS: Self = Self(aya_log::Level::Debug as u8);
}

/// The log records of the kernel programs.
pub struct KernelLog(EbpfLogger<&'static dyn log::Log>);

impl KernelLog {
    /// Of programs that were just loaded.
    pub(super) fn of(ebpf: &mut Ebpf) -> Result<Self> {
        EbpfLogger::init(ebpf)
            .map(Self)
            .context("open the kernel programs' log")
    }

    /// Forwards records until canceled.
    pub async fn forward(self) {
        // SAFETY: the descriptor is the logger's own and stays open as long as it is owned here.
        let registered = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) };
        let Ok(mut log) = registered else { return };
        while let Ok(mut ready) = log.readable_mut().await {
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}
