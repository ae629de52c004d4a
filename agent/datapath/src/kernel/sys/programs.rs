//! Programs: load, list those attached to a cgroup, name and id.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use aya_obj::generated::{
    BPF_F_ALLOW_MULTI, bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn, bpf_prog_info, bpf_prog_type,
};

use super::{
    call::{bpf, bpf_fd, bpf_read, object_name, raw},
    objects::info,
};

/// How often a load is tried again that a signal has interrupted.
const RETRIES: usize = 3;
/// Room for the verifier's log.
const LOG_SIZE: usize = 1 << 20;
/// Lines of that log an error carries: the last ones name the cause.
const LOG_LINES: usize = 4;

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
    for _ in 0..RETRIES {
        if !loaded.as_ref().is_err_and(interrupted) {
            break;
        }
        loaded = load(&mut []);
    }
    loaded.map_err(|error| {
        let mut log = vec![0; LOG_SIZE];
        let _ = load(&mut log);
        with_verifier_log(error, &log)
    })
}

/// Adds the last lines of the verifier's log, a NUL-terminated text, to an error.
fn with_verifier_log(error: io::Error, log: &[u8]) -> io::Error {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("; ");
    if tail.is_empty() {
        error
    } else {
        io::Error::new(error.kind(), format!("{error} (verifier: {tail})"))
    }
}

/// Loads BTF into the kernel.
pub fn btf_load(btf: &[u8]) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_BTF_LOAD, |attr| {
        attr.__bindgen_anon_7.btf = btf.as_ptr() as u64;
        attr.__bindgen_anon_7.btf_size = btf.len() as u32;
    })
}

/// Attaches a program to a map of sockets, in the place of the one it has. It stays for as long as the map.
pub fn attach_to_sockets(
    program: BorrowedFd<'_>,
    map: BorrowedFd<'_>,
    attach_type: bpf_attach_type,
) -> io::Result<()> {
    attach_alone(program, map, attach_type)
}

/// Attaches a program without a link and without flags. To a cgroup, that forbids others at it and below it.
pub fn attach_alone(
    program: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attach_type: bpf_attach_type,
) -> io::Result<()> {
    bpf(bpf_cmd::BPF_PROG_ATTACH, |attr| {
        attr.__bindgen_anon_5.__bindgen_anon_1.target_fd = raw(target);
        attr.__bindgen_anon_5.attach_bpf_fd = raw(program);
        attr.__bindgen_anon_5.attach_type = attach_type as u32;
    })
    .map(drop)
}

/// The programs attached to a cgroup itself.
#[derive(Clone, Debug, Default)]
pub struct AttachedPrograms {
    /// Their ids, in the order in which they run.
    pub ids: Vec<u32>,
    /// Whether they run for a cgroup below only if that has none of its own, and may forbid it to have any: attached
    /// without BPF_F_ALLOW_MULTI, which links always have.
    pub is_exclusive: bool,
}

/// The programs attached to a cgroup itself (Linux 4.15).
pub fn attached_programs(
    cgroup: BorrowedFd<'_>,
    attach_type: bpf_attach_type,
) -> io::Result<AttachedPrograms> {
    // The kernel's BPF_CGROUP_MAX_PROGS.
    let mut ids = [0_u32; 64];
    let (mut count, mut flags) = (0, 0);
    // SAFETY: the kernel wrote the number of programs where it had read the room for them.
    let read = |attr: &bpf_attr| unsafe {
        (
            attr.query.__bindgen_anon_2.prog_cnt,
            attr.query.attach_flags,
        )
    };
    bpf_read(
        bpf_cmd::BPF_PROG_QUERY,
        |attr| {
            attr.query.__bindgen_anon_1.target_fd = raw(cgroup);
            attr.query.attach_type = attach_type as u32;
            attr.query.prog_ids = ids.as_mut_ptr() as u64;
            attr.query.__bindgen_anon_2.prog_cnt = ids.len() as u32;
        },
        |attr| (count, flags) = read(attr),
    )?;
    let ids = ids[..ids.len().min(count as usize)].to_vec();
    Ok(AttachedPrograms {
        is_exclusive: !ids.is_empty() && flags & BPF_F_ALLOW_MULTI == 0,
        ids,
    })
}

/// The name of a program, for people.
pub fn program_name(id: u32) -> String {
    let named = named_program(id).ok().filter(|name| !name.is_empty());
    named.unwrap_or_else(|| "without a name".to_owned())
}

fn named_program(id: u32) -> io::Result<String> {
    let program = bpf_fd(bpf_cmd::BPF_PROG_GET_FD_BY_ID, |attr| {
        attr.__bindgen_anon_6.__bindgen_anon_1.prog_id = id;
    })?;
    let info = program_info(program.as_fd())?;
    let name = info.name.iter().take_while(|byte| **byte != 0);
    let name: Vec<u8> = name.map(|byte| *byte as u8).collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// A program's id.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(program_info(program)?.id)
}

fn program_info(program: BorrowedFd<'_>) -> io::Result<bpf_prog_info> {
    // SAFETY: `bpf_prog_info` is one of these structs.
    unsafe { info(program) }
}

#[cfg(test)]
mod tests;
