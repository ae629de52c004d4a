//! The bpf(2) calls that aya 0.14 lacks or has for some hooks only: links (create, update, query),
//! pins, untyped map access, program load. One way for all hooks alike.
//!
//! Every function is a thin, safe wrapper: arguments are borrowed for the call, results are owned
//! descriptors, failures carry errno. Source: bpf(2), include/uapi/linux/bpf.h.

use std::{
    ffi::CString,
    io, mem,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use aya_obj::generated::{
    bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn, bpf_link_info, bpf_map_info, bpf_map_type,
    bpf_prog_type,
};

/// Runs one bpf(2) command on a zeroed attribute union that `fill` completes.
fn bpf(command: bpf_cmd, fill: impl FnOnce(&mut bpf_attr)) -> io::Result<i64> {
    bpf_read(command, fill, |_| {})
}

/// As [`bpf`], for commands that answer in the union itself.
fn bpf_read(
    command: bpf_cmd,
    fill: impl FnOnce(&mut bpf_attr),
    read: impl FnOnce(&bpf_attr),
) -> io::Result<i64> {
    // SAFETY: the union is plain data; all zero is what the kernel expects of unused fields.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    fill(&mut attr);
    // SAFETY: the kernel reads and writes at most the given size; pointers that callers put into
    // the union refer to buffers they keep borrowed until this returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_int,
            &raw mut attr,
            size_of::<bpf_attr>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        read(&attr);
        Ok(result)
    }
}

/// As [`bpf`], for commands that answer a new file descriptor.
fn bpf_fd(command: bpf_cmd, fill: impl FnOnce(&mut bpf_attr)) -> io::Result<OwnedFd> {
    let fd = bpf(command, fill)?;
    // SAFETY: the command succeeded, so this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Attaches a program: the target is a cgroup directory or a network namespace. The link holds the
/// attachment until its last descriptor and pin are gone (Linux 5.7; sk_lookup 5.9).
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

/// Pins an object in a bpffs; fails if the name is taken.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    bpf(bpf_cmd::BPF_OBJ_PIN, |attr| {
        attr.__bindgen_anon_4.bpf_fd = raw(object);
        attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    })
    .map(drop)
}

/// Opens a pinned object.
pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    bpf_fd(bpf_cmd::BPF_OBJ_GET, |attr| {
        attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    })
}

fn info<T>(object: BorrowedFd<'_>) -> io::Result<T> {
    // SAFETY: the info structs are plain data, all zero asks for no optional buffers.
    let mut info: T = unsafe { mem::zeroed() };
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, |attr| {
        attr.info.bpf_fd = raw(object);
        attr.info.info = (&raw mut info) as u64;
        attr.info.info_len = size_of::<T>() as u32;
    })?;
    Ok(info)
}

/// What the kernel says of a link; fails for descriptors that are none.
pub fn link_info(link: BorrowedFd<'_>) -> io::Result<bpf_link_info> {
    info(link)
}

/// What the kernel says of a map.
pub fn map_info(map: BorrowedFd<'_>) -> io::Result<bpf_map_info> {
    info(map)
}

/// Creates a map without BTF.
pub fn map_create(
    map_type: bpf_map_type,
    name: &str,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, |attr| {
        attr.__bindgen_anon_1.map_type = map_type as u32;
        attr.__bindgen_anon_1.key_size = key_size;
        attr.__bindgen_anon_1.value_size = value_size;
        attr.__bindgen_anon_1.max_entries = max_entries;
        attr.__bindgen_anon_1.map_flags = flags;
        attr.__bindgen_anon_1.map_name = object_name(name);
    })
}

/// Creates a socket storage map, which the kernel wants BTF for; `int` is the id of
/// a 4-byte integer in it.
pub fn storage_map_create(name: &str, btf: BorrowedFd<'_>, int: u32) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, |attr| {
        attr.__bindgen_anon_1.map_type = bpf_map_type::BPF_MAP_TYPE_SK_STORAGE as u32;
        attr.__bindgen_anon_1.key_size = 4;
        attr.__bindgen_anon_1.value_size = 4;
        attr.__bindgen_anon_1.map_flags = aya_obj::generated::BPF_F_NO_PREALLOC;
        attr.__bindgen_anon_1.map_name = object_name(name);
        attr.__bindgen_anon_1.btf_fd = raw(btf);
        attr.__bindgen_anon_1.btf_key_type_id = int;
        attr.__bindgen_anon_1.btf_value_type_id = int;
    })
}

/// Loads BTF into the kernel.
pub fn btf_load(btf: &[u8]) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_BTF_LOAD, |attr| {
        attr.__bindgen_anon_7.btf = btf.as_ptr() as u64;
        attr.__bindgen_anon_7.btf_size = btf.len() as u32;
    })
}

/// Makes a map read-only for userspace; programs then treat its values as constants.
pub fn map_freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    bpf(bpf_cmd::BPF_MAP_FREEZE, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
    })
    .map(drop)
}

/// Reads a value; `Ok(false)` when the key is absent. `value` must hold the map's value size (for
/// per-CPU maps: 8-byte slots for every possible CPU).
pub fn map_lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
    let found = bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    });
    absent_is_false(found)
}

/// Writes a value; `flags` as in bpf(2): 0 any, 1 only if absent, 2 only if present.
pub fn map_update(map: BorrowedFd<'_>, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_ptr() as u64;
        attr.__bindgen_anon_2.flags = flags;
    })
    .map(drop)
}

/// Deletes a key; `Ok(false)` when it was absent.
pub fn map_delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<bool> {
    let deleted = bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
    });
    absent_is_false(deleted)
}

/// Writes the key after `key` (the first, for `None`) to `next`; `Ok(false)` at the end.
pub fn map_next_key(map: BorrowedFd<'_>, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
    let found = bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.map_or(0, |key| key.as_ptr() as u64);
        attr.__bindgen_anon_2.__bindgen_anon_1.next_key = next.as_mut_ptr() as u64;
    });
    absent_is_false(found)
}

fn absent_is_false(result: io::Result<i64>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Loads a program; on refusal the error carries the end of the verifier's log.
pub fn program_load(
    program_type: bpf_prog_type,
    attach_type: Option<bpf_attach_type>,
    name: &str,
    instructions: &[bpf_insn],
) -> io::Result<OwnedFd> {
    let load = |log: &mut [u8]| {
        bpf_fd(bpf_cmd::BPF_PROG_LOAD, |attr| {
            attr.__bindgen_anon_3.prog_type = program_type as u32;
            attr.__bindgen_anon_3.insn_cnt = instructions.len() as u32;
            attr.__bindgen_anon_3.insns = instructions.as_ptr() as u64;
            attr.__bindgen_anon_3.license = c"Dual MIT/GPL".as_ptr() as u64;
            attr.__bindgen_anon_3.prog_name = object_name(name);
            if let Some(attach_type) = attach_type {
                attr.__bindgen_anon_3.expected_attach_type = attach_type as u32;
            }
            if !log.is_empty() {
                attr.__bindgen_anon_3.log_level = 1;
                attr.__bindgen_anon_3.log_size = log.len() as u32;
                attr.__bindgen_anon_3.log_buf = log.as_mut_ptr() as u64;
            }
        })
    };
    // EAGAIN: a signal was pending (`do_check` in kernel/bpf/verifier.c).
    let interrupted = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    let mut loaded = load(&mut []);
    for _ in 0..3 {
        if !loaded.as_ref().is_err_and(interrupted) {
            break;
        }
        loaded = load(&mut []);
    }
    loaded.map_err(|error| {
        let mut log = vec![0; 1 << 20];
        let _ = load(&mut log);
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let text = String::from_utf8_lossy(&log[..end]);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(4)..].join("; ");
        if tail.is_empty() {
            error
        } else {
            io::Error::new(error.kind(), format!("{error} (verifier: {tail})"))
        }
    })
}

/// Names of maps and programs: at most 15 bytes and a NUL.
fn object_name(name: &str) -> [std::ffi::c_char; 16] {
    let mut out = [0; 16];
    for (to, from) in out.iter_mut().zip(name.bytes().take(15)) {
        *to = from as std::ffi::c_char;
    }
    out
}

/// A pidfd for a process (Linux 5.3).
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A duplicate of a descriptor of another process (Linux 5.6; needs ptrace rights over it).
pub fn pidfd_getfd(pidfd: &OwnedFd, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, raw(pidfd.as_fd()), fd, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The `CLONE_NEW*` flag of a namespace's kind (ioctl_ns(2), Linux 4.11).
pub fn namespace_type(namespace: BorrowedFd<'_>) -> io::Result<i32> {
    const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
    // SAFETY: the request takes no argument.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_NSTYPE) } {
        -1 => Err(io::Error::last_os_error()),
        kind => Ok(kind),
    }
}

/// The user namespace that owns a namespace (ioctl_ns(2), Linux 4.9).
pub fn owning_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    // SAFETY: the request takes no argument and answers a new descriptor.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: as above, nobody else has it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// An integer socket option that std and nix have no name for.
pub fn socket_option_u64(socket: BorrowedFd<'_>, option: i32) -> io::Result<u64> {
    let mut value = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: a local of the given length.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if failed == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives memory that was freed back to the kernel: loading parses megabytes of BTF, and what glibc
/// keeps of that for later counts as the agent's.
pub fn trim_heap() {
    // SAFETY: takes a number.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The id of the cgroup a link is attached to; 0 for other links.
pub fn link_cgroup(link: BorrowedFd<'_>) -> io::Result<u64> {
    let info = link_info(link)?;
    if info.type_ != aya_obj::generated::bpf_link_type::BPF_LINK_TYPE_CGROUP as u32 {
        return Ok(0);
    }
    // SAFETY: the link's type says that this member was filled in.
    Ok(unsafe { info.__bindgen_anon_1.cgroup.cgroup_id })
}

/// Takes a link off what it is attached to, for whoever holds it or has it pinned (Linux 5.9).
pub fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(bpf_cmd::BPF_LINK_DETACH, |attr| {
        attr.link_detach.link_fd = raw(link);
    })
    .map(drop)
}

/// The inode of the network namespace a link is attached to; 0 for other links, and for those that
/// were detached or whose namespace is gone.
pub fn link_netns(link: BorrowedFd<'_>) -> io::Result<u64> {
    let info = link_info(link)?;
    if info.type_ != aya_obj::generated::bpf_link_type::BPF_LINK_TYPE_NETNS as u32 {
        return Ok(0);
    }
    // SAFETY: the link's type says that this member was filled in.
    Ok(u64::from(unsafe { info.__bindgen_anon_1.netns.netns_ino }))
}

/// Ids of the programs attached to a cgroup itself, in the order in which they run (Linux 4.15).
pub fn attached_programs(
    cgroup: BorrowedFd<'_>,
    attach_type: bpf_attach_type,
) -> io::Result<Vec<u32>> {
    // The kernel's BPF_CGROUP_MAX_PROGS.
    let mut ids = [0_u32; 64];
    let mut count = 0;
    // SAFETY: the kernel wrote the number of programs where it had read the room for them.
    let read = |attr: &bpf_attr| unsafe { attr.query.__bindgen_anon_2.prog_cnt };
    bpf_read(
        bpf_cmd::BPF_PROG_QUERY,
        |attr| {
            attr.query.__bindgen_anon_1.target_fd = raw(cgroup);
            attr.query.attach_type = attach_type as u32;
            attr.query.prog_ids = ids.as_mut_ptr() as u64;
            attr.query.__bindgen_anon_2.prog_cnt = ids.len() as u32;
        },
        |attr| count = read(attr),
    )?;
    Ok(ids[..ids.len().min(count as usize)].to_vec())
}

/// The name of a program, which any may have that was loaded without one.
pub fn program_name(id: u32) -> io::Result<String> {
    let program = bpf_fd(bpf_cmd::BPF_PROG_GET_FD_BY_ID, |attr| {
        attr.__bindgen_anon_6.__bindgen_anon_1.prog_id = id;
    })?;
    let info: aya_obj::generated::bpf_prog_info = info(program.as_fd())?;
    let name = info.name.iter().take_while(|byte| **byte != 0);
    let name: Vec<u8> = name.map(|byte| *byte as u8).collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// A program's id.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    let info: aya_obj::generated::bpf_prog_info = info(program)?;
    Ok(info.id)
}
