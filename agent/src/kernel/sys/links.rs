//! Links: attach a program, replace it, detach it, find out where it is attached.
//!
//! aya 0.14 attaches these hooks too, but cannot pin sockopt links and updates XDP and TC links only.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_link_info, bpf_link_type};

use super::{
    call::{bpf, bpf_fd, raw},
    objects::info,
};

/// Attaches a program to a cgroup directory or a network namespace. The attachment lasts until the
/// link's last descriptor and pin are gone (Linux 5.7; sk_lookup 5.9).
pub fn link_create(
    program: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attach_type: bpf_attach_type,
) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, |attr| {
        attr.link_create.__bindgen_anon_1.prog_fd = raw(program);
        attr.link_create.__bindgen_anon_2.target_fd = raw(target);
        attr.link_create.attach_type = attach_type as u32;
    })
}

/// Replaces a link's program atomically.
pub fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    bpf(bpf_cmd::BPF_LINK_UPDATE, |attr| {
        attr.link_update.link_fd = raw(link);
        attr.link_update.__bindgen_anon_1.new_prog_fd = raw(program);
    })
    .map(drop)
}

/// Detaches a link, also for all other holders of a descriptor or pin (Linux 5.9).
pub fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(bpf_cmd::BPF_LINK_DETACH, |attr| {
        attr.link_detach.link_fd = raw(link);
    })
    .map(drop)
}

/// Describes a link. For a descriptor of a map or program the kernel fills in that one's description.
pub fn link_info(link: BorrowedFd<'_>) -> io::Result<bpf_link_info> {
    // SAFETY: `bpf_link_info` is one of these structs.
    unsafe { info(link) }
}

/// The id of the cgroup a link is attached to; 0 for other links.
pub fn link_cgroup(link: BorrowedFd<'_>) -> io::Result<u64> {
    let info = link_info(link)?;
    if info.type_ != bpf_link_type::BPF_LINK_TYPE_CGROUP as u32 {
        return Ok(0);
    }
    // SAFETY: the link's type says that this member was filled in.
    Ok(unsafe { info.__bindgen_anon_1.cgroup.cgroup_id })
}

/// The inode of the network namespace a link is attached to; 0 for other links, and for links that
/// are detached or whose namespace is gone.
pub fn link_netns(link: BorrowedFd<'_>) -> io::Result<u64> {
    let info = link_info(link)?;
    if info.type_ != bpf_link_type::BPF_LINK_TYPE_NETNS as u32 {
        return Ok(0);
    }
    // SAFETY: the link's type says that this member was filled in.
    Ok(u64::from(unsafe { info.__bindgen_anon_1.netns.netns_ino }))
}
