//! Does something as another user. Credentials belong to threads, so each identity gets a thread of
//! its own; the system calls are made directly because glibc's change all threads.

use std::{io, thread};

use anyhow::{Context as _, Result};
use lab::protocol::Identity;

/// Runs a closure with an identity.
pub fn run_as<T: Send>(identity: &Identity, work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        scope
            .spawn(|| {
                take_on(identity).with_context(|| format!("become {identity:?}"))?;
                Ok(work())
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn take_on(identity: &Identity) -> io::Result<()> {
    let groups = &identity.groups;
    let real_uid = identity.real_uid.unwrap_or(identity.uid);
    // SAFETY: the pointer is to as many groups as said; the rest are numbers and the two calls that
    // are allowed. Only this thread's credentials change.
    unsafe {
        check(libc::syscall(
            libc::SYS_setgroups,
            groups.len(),
            groups.as_ptr(),
        ))?;
        check(libc::syscall(
            libc::SYS_setresgid,
            identity.gid,
            identity.gid,
            identity.gid,
        ))?;
        // Before the uids: afterwards the thread may have no right to.
        if let Some(gid) = identity.fs_gid {
            set_filesystem_id(libc::SYS_setfsgid, gid)?;
        }
        check(libc::syscall(
            libc::SYS_setresuid,
            real_uid,
            identity.uid,
            identity.uid,
        ))?;
        identity
            .fs_uid
            .map_or(Ok(()), |uid| set_filesystem_id(libc::SYS_setfsuid, uid))
    }
}

/// setfsuid and setfsgid answer the earlier id and report no failure: a second call, which changes
/// nothing, answers what the first has done.
///
/// # Safety
/// `call` must be one of these two.
unsafe fn set_filesystem_id(call: libc::c_long, id: u32) -> io::Result<()> {
    // SAFETY: takes and returns a number.
    let is = unsafe {
        libc::syscall(call, id);
        libc::syscall(call, u32::MAX)
    };
    if is == libc::c_long::from(id) {
        Ok(())
    } else {
        Err(io::Error::other(format!("the filesystem id stays {is}")))
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
