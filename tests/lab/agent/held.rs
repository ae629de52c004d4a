//! A thread of the agent that is held from outside, as if it hung.

use std::{fs, marker::PhantomData, thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

/// A thread that does nothing until this is dropped, by the thread that holds it.
pub struct HeldThread {
    thread: Pid,
    _not_send: PhantomData<*const ()>,
}

/// The calls of a thread that waits for events. Newer architectures have the second one only.
const WAITS: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
];

/// Whether the kernel no longer says in which call a thread is once it has stopped (`do_signal` of
/// arch/arm64/kernel/signal.c).
const FORGETS_CALL: bool = cfg!(target_arch = "aarch64");

impl HeldThread {
    /// Holds the thread with this name while it waits for something, so that it holds no lock.
    pub fn hold(process: u32, name: &str) -> Result<Self> {
        let tasks = format!("/proc/{process}/task");
        let mut found = None;
        for task in fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))? {
            let task = task?;
            if fs::read_to_string(task.path().join("comm"))?.trim() == name {
                found = task.file_name().to_string_lossy().parse().ok();
            }
        }
        let id: i32 = found.with_context(|| format!("no thread {name}"))?;
        let traced = Pid::from_raw(id);
        ptrace::seize(traced, ptrace::Options::empty()).context("trace the thread")?;
        let held = Self {
            thread: traced,
            _not_send: PhantomData,
        };
        let waits = || -> Result<bool> {
            let call = fs::read_to_string(format!("{tasks}/{id}/syscall"))?;
            let number = call.split_whitespace().next().unwrap_or_default();
            Ok(WAITS.iter().any(|wait| number == wait.to_string()))
        };
        for _ in 0..100 {
            let waited = waits()?;
            held.stop()?;
            if waited && (FORGETS_CALL || waits()?) {
                return Ok(held);
            }
            ptrace::cont(traced, None)?;
            thread::sleep(Duration::from_millis(10));
        }
        held.stop()?;
        bail!("thread {name} never waits")
    }

    fn stop(&self) -> Result<()> {
        ptrace::interrupt(self.thread)?;
        waitpid(self.thread, Some(WaitPidFlag::__WALL))?;
        Ok(())
    }
}

impl Drop for HeldThread {
    /// The thread has stopped by now. A running one cannot be detached, and the end of its process could never be waited for.
    fn drop(&mut self) {
        let _ = ptrace::detach(self.thread, None);
    }
}
