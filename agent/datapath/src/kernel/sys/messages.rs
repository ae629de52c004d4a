//! Messages between processes, of which each may carry a descriptor (unix(7), SCM_RIGHTS).

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use nix::{
    cmsg_space,
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
        sendmsg, socketpair,
    },
};

/// Two connected sockets that keep the bounds of messages.
pub fn message_sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    Ok(socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends a message, without waiting for room.
pub fn send_message(
    socket: BorrowedFd<'_>,
    text: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let raw = descriptor.map(|descriptor| [descriptor.as_raw_fd()]);
    let rights = raw.as_ref().map(|raw| ControlMessage::ScmRights(raw));
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let parts = [IoSlice::new(text)];
    sendmsg::<()>(socket.as_raw_fd(), &parts, rights.as_slice(), flags, None)?;
    Ok(())
}

/// Waits for a message; its length is 0 at the end. A longer one than there is room for is cut off.
pub fn receive_message(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut rights = cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(room)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let socket = socket.as_raw_fd();
    let received = loop {
        match recvmsg::<()>(socket, &mut parts, Some(&mut rights), flags) {
            Err(nix::errno::Errno::EINTR) => {}
            other => break other?,
        }
    };
    let mut descriptor = None;
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = message {
            for raw in descriptors {
                // SAFETY: the kernel has made it for this message, it has no other owner.
                descriptor = Some(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
    }
    Ok((received.bytes, descriptor))
}
