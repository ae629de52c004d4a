//! Links: attach a program, replace it, detach it, find out where it is attached.
//!
//! aya 0.14 attaches these hooks too, but cannot pin sockopt links and updates XDP and TC links only.

use std::{
    fs::File,
    io::{self, Read as _},
    ops::ControlFlow,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use aya_obj::generated::{BPF_F_BEFORE, bpf_attach_type, bpf_cmd, bpf_link_info, bpf_link_type};

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

/// Where a program stands among those of an interface.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Before those that are there.
    First,
    /// Behind them.
    Last,
}

/// Attaches a program to the packets that an interface of the calling thread's network namespace receives (Linux
/// 6.6). The attachment ends with the interface as well.
pub fn link_create_ingress(
    program: BorrowedFd<'_>,
    ifindex: u32,
    order: Order,
) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, |attr| {
        attr.link_create.__bindgen_anon_1.prog_fd = raw(program);
        attr.link_create.__bindgen_anon_2.target_ifindex = ifindex;
        attr.link_create.attach_type = bpf_attach_type::BPF_TCX_INGRESS as u32;
        attr.link_create.flags = match order {
            Order::First => BPF_F_BEFORE,
            Order::Last => 0,
        };
    })
}

/// The interface that a link of [`link_create_ingress`] is attached to; 0 for other links, and if it is gone.
pub fn link_ifindex(link: BorrowedFd<'_>) -> io::Result<u32> {
    let info = link_info(link)?;
    if info.type_ != bpf_link_type::BPF_LINK_TYPE_TCX as u32 {
        return Ok(0);
    }
    // SAFETY: the link's type says that this member was filled in.
    Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex })
}

/// An iterator over tasks or their open files, as the program says: of one process, or of all processes of this pid
/// namespace. Reading it runs the program. On kernels before 6.1 one process cannot be chosen: E2BIG.
pub fn iterate(program: BorrowedFd<'_>, process: Option<i32>) -> io::Result<File> {
    // `union bpf_iter_link_info`, its member `task`: tid, pid, pid_fd.
    let task = process.map(|process| [0, process as u32, 0]);
    iterator(program, task.as_ref().map_or(&[], |task| task))
}

/// An iterator over the rows of a map. Reading it runs the program (of maps of sockets Linux 5.10).
pub fn iterate_map(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<File> {
    // The member `map` of that union: its descriptor.
    iterator(program, &[raw(map)])
}

/// An iterator over what `info` names, a `union bpf_iter_link_info`; over everything if it is empty.
fn iterator(program: BorrowedFd<'_>, info: &[u32]) -> io::Result<File> {
    let link = bpf_fd(bpf_cmd::BPF_LINK_CREATE, |attr| {
        attr.link_create.__bindgen_anon_1.prog_fd = raw(program);
        attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
        if !info.is_empty() {
            // SAFETY: a member of the zeroed union; `info` lives until the call returns.
            let iterated = unsafe { &mut attr.link_create.__bindgen_anon_3.__bindgen_anon_1 };
            iterated.iter_info = info.as_ptr() as u64;
            iterated.iter_info_len = size_of_val(info) as u32;
        }
    })?;
    let iterator = bpf_fd(bpf_cmd::BPF_ITER_CREATE, |attr| {
        attr.iter_create.link_fd = raw(link.as_fd());
    })?;
    Ok(iterator.into())
}

/// Reads what a program writes at each object of an iterator, until that ends or `each` has enough. After a million objects
/// the kernel returns for a moment (`MAX_ITER_OBJECTS` in kernel/bpf/bpf_iter.c): `each` gets nothing then.
pub fn read_iterator(
    mut iterator: File,
    mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    // As many as the kernel collects at once: it walks over a map's bucket from its beginning for each read.
    let mut buffer = vec![0; 32 << 10];
    loop {
        let read = match iterator.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        if each(&buffer[..read]).is_break() {
            return Ok(());
        }
    }
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

/// The program of a link that is attached to a network namespace; `None` for one that is not.
pub fn link_program_in_netns(link: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let info = link_info(link)?;
    Ok((netns_of(&info) != 0).then_some(info.prog_id))
}

/// The inode of the network namespace a link is attached to; 0 for other links, and for links that
/// are detached or whose namespace is gone.
pub fn link_netns(link: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(netns_of(&link_info(link)?))
}

fn netns_of(info: &bpf_link_info) -> u64 {
    if info.type_ != bpf_link_type::BPF_LINK_TYPE_NETNS as u32 {
        return 0;
    }
    // SAFETY: the link's type says that this member was filled in.
    u64::from(unsafe { info.__bindgen_anon_1.netns.netns_ino })
}
