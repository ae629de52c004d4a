//! Holds the reconciler, for tests of what the agent answers meanwhile.

use std::{path::PathBuf, thread, time::Duration};

/// Names a file. While it exists the reconciler begins no turn, for tests of what the agent answers
/// meanwhile.
const HOLD: &str = "SIDETRACK_DEBUG_HOLD";

/// Between two looks at the file.
const PAUSE: Duration = Duration::from_millis(50);

/// The file, if the environment names one.
#[derive(Debug)]
pub(super) struct DebugHold(Option<PathBuf>);

impl DebugHold {
    pub(super) fn from_env() -> Self {
        Self(std::env::var_os(HOLD).map(PathBuf::from))
    }

    /// Blocks the calling thread, as a reconciler that hangs would, as long as the file exists.
    pub(super) fn wait(&self) {
        if let Some(path) = &self.0 {
            while path.exists() {
                thread::sleep(PAUSE);
            }
        }
    }
}
