//! What a network namespace calls another one: the kernel's programs name it by that number.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
};

use netlink_packet_route::{
    RouteNetlinkMessage,
    nsid::{NsidAttribute, NsidMessage},
};

use crate::kernel::netlink::{self, ignore_errnos};

/// "Any free number", and "it has none".
const NONE: i32 = -1;

/// The number that the namespace of the calling thread has for another one, which it is given if it has none.
///
/// # Errors
/// If the kernel refuses.
pub fn of(other: &File) -> io::Result<u32> {
    if let Some(known) = get(other.as_fd())? {
        return Ok(known);
    }
    let mut message = about(other.as_fd());
    message.attributes.push(NsidAttribute::Id(NONE));
    let added = netlink::change(RouteNetlinkMessage::NewNsId(message), 0);
    ignore_errnos(&[libc::EEXIST], added)?;
    get(other.as_fd())?.ok_or_else(|| io::Error::other("the kernel gave it no number"))
}

fn get(other: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let answer = netlink::get(RouteNetlinkMessage::GetNsId(about(other)))?;
    let RouteNetlinkMessage::NewNsId(message) = answer else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let id = message.attributes.iter().find_map(|it| match it {
        NsidAttribute::Id(id) => Some(*id),
        _ => None,
    });
    Ok(id.and_then(|id| u32::try_from(id).ok()))
}

fn about(other: BorrowedFd<'_>) -> NsidMessage {
    let mut message = NsidMessage::default();
    let fd = other.as_raw_fd().cast_unsigned();
    message.attributes.push(NsidAttribute::Fd(fd));
    message
}
