//! A child process in namespaces of its own. Another thread of the actor may hold a lock while the child is
//! made, so the child makes system calls only, and ends without returning.

use std::{
    io::{self, Read as _},
    net::SocketAddr,
    os::fd::{AsRawFd as _, RawFd},
};

use anyhow::{Context as _, Result};
use lab::protocol::{APP, Dial, Response};
use socket2::{Domain, SockAddr, Socket};

use crate::{
    dial::{self, both_ends},
    identity::run_as,
    tricks::set,
};

/// What became of the child's attempts, as errnos: unshare, connect from there, TCP_REPAIR, connect of the
/// socket from before.
type Attempts = [i32; 4];

/// Creates a socket, moves, and connects both this and a new one.
pub fn connect(to: SocketAddr) -> Result<Response> {
    let (socket, attempts) = run_as(&APP, || -> io::Result<(Socket, Attempts)> {
        let socket = dial::open(&Dial::new(&APP, to))?;
        let attempts = attempts(&socket, to)?;
        Ok((socket, attempts))
    })?
    .context("run a child in namespaces of its own")?;
    let [unshared, inside, repair, before] = attempts;
    if unshared != 0 {
        return Ok(Response::Unavailable(unshared));
    }
    let connected = match before {
        0 => both_ends(socket)?.map(|(connected, _)| connected),
        errno => Err(errno),
    };
    Ok(Response::AllDialed(vec![
        Err(inside),
        Err(repair),
        connected,
    ]))
}

fn attempts(before: &Socket, to: SocketAddr) -> io::Result<Attempts> {
    let (mut answers, answer) = io::pipe()?;
    let to_address = SockAddr::from(to);
    // SAFETY: the child makes system calls only, see the head of this file.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        let attempts = in_child(before.as_raw_fd(), Domain::for_address(to), &to_address);
        // SAFETY: as many bytes as there are; _exit does not return.
        unsafe {
            libc::write(
                answer.as_raw_fd(),
                attempts.as_ptr().cast(),
                size_of::<Attempts>(),
            );
            libc::_exit(0);
        }
    }
    drop(answer);
    let mut bytes = [0; size_of::<Attempts>()];
    let read = answers.read_exact(&mut bytes);
    // SAFETY: the status of a child is not of interest.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    read?;
    let mut attempts = Attempts::default();
    for (attempt, bytes) in attempts.iter_mut().zip(bytes.chunks_exact(4)) {
        *attempt = i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    Ok(attempts)
}

fn in_child(before: RawFd, domain: Domain, to: &SockAddr) -> Attempts {
    // SAFETY: numbers, and an address of the given length. The descriptor ends with the child.
    unsafe {
        let unshared = errno_of(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET));
        if unshared != 0 {
            return [unshared, 0, 0, 0];
        }
        let inside = libc::socket(i32::from(domain), libc::SOCK_STREAM, 0);
        let inside = errno_of(libc::connect(inside, to.as_ptr().cast(), to.len()));
        // All capabilities, but not in the user namespace that owns the pod's network.
        let repair = set(before, libc::IPPROTO_TCP, libc::TCP_REPAIR);
        let repair = repair.map_or_else(|error| dial::errno(&error), |()| 0);
        let before = errno_of(libc::connect(before, to.as_ptr().cast(), to.len()));
        [unshared, inside, repair, before]
    }
}

/// Starts processes that do nothing until this one ends.
pub fn sleep(count: usize) -> io::Result<()> {
    for _ in 0..count {
        // SAFETY: the child makes system calls only, see the head of this file.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        if child == 0 {
            // SAFETY: numbers.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
    }
    Ok(())
}

/// The errno of a call that has answered this.
fn errno_of(answer: i32) -> i32 {
    if answer < 0 {
        dial::errno(&io::Error::last_os_error())
    } else {
        0
    }
}
