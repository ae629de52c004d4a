//! What an application may try to get past the sidecar; `lab::tricks` describes each.

use std::{
    fs,
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    net::SocketAddr,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lab::{
    protocol::{APP, Dial, Names, Response},
    tricks::{Privilege, Trick},
};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{dial, identity::run_as, names, nested, ring};

const WAIT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Plays one.
pub fn play(trick: Trick) -> Result<Response> {
    match trick {
        Trick::Ring(by) => Ok(match run_as(&APP, || ring::probe(by))? {
            Ok(()) => Response::Done,
            Err(error) => Response::Unavailable(dial::errno(&error)),
        }),
        Trick::Lend { at, dial } => lend(&at, &dial).map(|()| Response::Done),
        Trick::Borrow { at, dial } => borrow(&at, &dial),
        Trick::SelfConnect { from, to } => {
            let ends = run_as(&APP, || self_connect(from, to))?;
            Ok(Response::Ends(Box::new(ends.context("connect to itself")?)))
        }
        Trick::Simultaneous(addresses) => {
            let ends = run_as(&APP, || simultaneous(addresses))?;
            let ends = ends.context("connect to each other")?;
            Ok(Response::Ends(Box::new(ends)))
        }
        Trick::Nested(to) => nested::connect(to),
    }
}

/// Sets an option of the socket's family.
pub fn privilege(socket: &Socket, privilege: Privilege) -> io::Result<()> {
    let v6 = socket.domain()? == Domain::IPV6;
    let (level, name) = match (privilege, v6) {
        (Privilege::FreeBind, false) => (libc::IPPROTO_IP, libc::IP_FREEBIND),
        (Privilege::FreeBind, true) => (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
        (Privilege::Transparent, false) => (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
        (Privilege::Transparent, true) => (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
        (Privilege::Repair, _) => (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    };
    set(socket.as_raw_fd(), level, name)
}

/// Sets an option to 1. Allocates nothing.
pub fn set(socket: RawFd, level: i32, name: i32) -> io::Result<()> {
    let one: i32 = 1;
    // SAFETY: a number of the given length.
    let failed = unsafe {
        libc::setsockopt(
            socket,
            level,
            name,
            (&raw const one).cast(),
            size_of::<i32>() as u32,
        )
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Has connect return at once, and the first write send the SYN.
pub fn defer(socket: &Socket) -> io::Result<()> {
    set(
        socket.as_raw_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_FASTOPEN_CONNECT,
    )?;
    // Without a cookie of an earlier connection only this defers the SYN.
    set(
        socket.as_raw_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_FASTOPEN_NO_COOKIE,
    )
}

/// Connects in that way.
pub fn fast_open_deferred(socket: &Socket, to: &SockAddr) -> io::Result<()> {
    defer(socket)?;
    socket.connect(to)?;
    if tcp_state(socket)? == TCP_ESTABLISHED {
        return Err(io::Error::other("the connection was not deferred"));
    }
    (&*socket).write_all(&[0])
}

const TCP_ESTABLISHED: u8 = 1;

fn tcp_state(socket: &Socket) -> io::Result<u8> {
    // SAFETY: zero is a value of each of its fields.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: a struct of the given length.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if failed == 0 {
        Ok(info.tcpi_state)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The socket belongs to the namespace and the cgroup of this process, whichever process connects it.
fn lend(at: &Path, dial: &Dial) -> Result<()> {
    let socket = run_as(&dial.creator, || dial::open(dial))?.context("create a socket")?;
    let listener = UnixListener::bind(at).with_context(|| format!("listen at {}", at.display()))?;
    thread::spawn(move || -> Result<()> {
        let (borrower, _) = listener.accept()?;
        let descriptors = [socket.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let byte = [IoSlice::new(&[0])];
        let flags = MsgFlags::empty();
        sendmsg::<()>(borrower.as_raw_fd(), &byte, &rights, flags, None)?;
        Ok(())
    });
    Ok(())
}

fn borrow(at: &Path, dial: &Dial) -> Result<Response> {
    let lender = UnixStream::connect(at).with_context(|| format!("connect to {}", at.display()))?;
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let received = recvmsg::<()>(
        lender.as_raw_fd(),
        &mut bytes,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let descriptor = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    let descriptor = descriptor.context("no descriptor came")?;
    // SAFETY: the kernel has made this descriptor for the message.
    let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    // The lender has ended its part, so the file can be removed.
    fs::remove_file(at)?;
    let result = dial::dial_on(socket, dial)?;
    Ok(Response::Dialed(
        result.map(|(connected, _)| Box::new(connected)),
    ))
}

fn bound(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    // No TIME_WAIT: the port is used again.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
    socket.set_write_timeout(Some(WAIT_TIMEOUT))?;
    socket.bind(&to.into())?;
    Ok(socket)
}

fn self_connect(from: SocketAddr, to: SocketAddr) -> io::Result<[Names; 2]> {
    let socket = bound(from)?;
    socket.connect(&to.into())?;
    carries(&socket, &socket)?;
    Ok([names::of(&socket)?, names::of(&socket)?])
}

fn simultaneous([first, second]: [SocketAddr; 2]) -> io::Result<[Names; 2]> {
    let (one, other) = (bound(first)?, bound(second)?);
    one.set_nonblocking(true)?;
    match one.connect(&second.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
        Ok(()) => return Err(io::Error::other("the first SYN did not get lost")),
    }
    one.set_nonblocking(false)?;
    other.connect(&first.into())?;
    carries(&one, &other)?;
    carries(&other, &one)?;
    Ok([names::of(&one)?, names::of(&other)?])
}

/// What is written to one comes out of the other.
fn carries(mut from: &Socket, mut to: &Socket) -> io::Result<()> {
    let mut arrived = [0; 4];
    from.write_all(b"ping")?;
    to.read_exact(&mut arrived)?;
    if &arrived == b"ping" {
        Ok(())
    } else {
        Err(io::Error::other(format!("{arrived:?} arrived")))
    }
}
