//! How a program runs and ends.

use std::{io, panic::resume_unwind, process::ExitCode, sync::Arc, thread, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::JoinHandle,
    time::Instant,
};

/// Runs a future to its end on the calling thread, with a runtime of its own.
///
/// # Errors
/// If the runtime cannot be made.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    // Helper threads are needed rarely, and only for moments.
    const KEEP_THREADS: Duration = Duration::from_millis(100);
    // One may hang in a file of a pod forever, which must not keep the program from its end.
    const END_THREADS: Duration = Duration::from_secs(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(KEEP_THREADS)
        .build()?;
    let output = runtime.block_on(future);
    runtime.shutdown_timeout(END_THREADS);
    Ok(output)
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// If signals cannot be received.
pub async fn until_signal() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Waits for a point in time, which other events do not postpone; without one it does not end.
pub async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The end of a program whose answer may be a bad one: 1 then, which scripts see. Wrong usage is 2.
#[must_use]
pub fn exit_code(fine: bool) -> ExitCode {
    ExitCode::from(u8::from(!fine))
}

/// Runs `work` on a thread that may block. If it panics, the caller panics as well.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match start_blocking(work).await {
        Ok(done) => done,
        Err(panic) => resume_unwind(panic.into_panic()),
    }
}

/// Starts `work` on a thread that may block. Where tokio's pool would panic because the kernel gives no thread, as on a node
/// that is full of them, it is asked again until it does.
pub fn start_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    const RETRY: Duration = Duration::from_millis(100);
    let (send, result) = oneshot::channel();
    // A thread that is refused does not give back what it was to run.
    let work = Arc::new(Mutex::new(Some((work, send))));
    let runtime = Handle::current();
    let start = move || {
        let (work, runtime) = (Arc::clone(&work), runtime.clone());
        thread::Builder::new().spawn(move || {
            let _runtime = runtime.enter();
            if let Some((work, send)) = work.lock().take() {
                // Without a receiver nothing waits for it.
                let _ = send.send(work());
            }
        })
    };
    let mut started = start();
    tokio::spawn(async move {
        while started.is_err() {
            tokio::time::sleep(RETRY).await;
            started = start();
        }
        result.await.expect("its thread does not panic")
    })
}
