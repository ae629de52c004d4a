//! The async runtime of a thread.

use std::{io, time::Duration};

/// Runs a future to its end on the calling thread, with a runtime of its own.
///
/// # Errors
/// If the runtime cannot be made.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    // Helper threads are needed rarely, and only for moments.
    const KEEP_THREADS: Duration = Duration::from_millis(100);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(KEEP_THREADS)
        .build()?;
    Ok(runtime.block_on(future))
}
