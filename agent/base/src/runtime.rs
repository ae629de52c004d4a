//! How a program runs and ends.

use std::{io, process::ExitCode, sync::Arc, thread, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::Instant,
};

/// Runs a future to its end on the calling thread, with a runtime of its own.
///
/// # Errors
/// If the runtime cannot be made.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    // The pool is used by libraries alone, rarely and for moments; for the rest see `start_blocking`.
    const KEEP_THREADS: Duration = Duration::from_millis(100);
    // None of it keeps the program from its end.
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

/// Waits so long; without a duration it does not end.
pub async fn sleep_for(duration: Option<Duration>) {
    sleep_until(duration.map(|it| Instant::now() + it)).await;
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
    start_blocking(work)
        .await
        .expect("its thread does not panic")
}

/// Starts `work` on a thread that may block. Where tokio's pool would panic because the kernel gives no thread, as on a node
/// that is full of them, it is asked again until it does.
pub fn start_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
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
    if start().is_err() {
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RETRY).await;
                if start().is_ok() {
                    return;
                }
            }
        });
    }
    result
}
