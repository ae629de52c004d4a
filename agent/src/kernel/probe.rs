//! What the node offers: each facility is tried, not looked up by kernel version.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use aya_obj::generated::{
    BPF_F_NO_PREALLOC, bpf_attach_type, bpf_func_id, bpf_insn, bpf_map_type, bpf_prog_type,
};
use serde::Serialize;

use super::{kernel_layout, pins::Pins, sys};
use crate::kernel::cgroup;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Kernel release.
    pub kernel: String,
    /// Whether everything needed is there.
    pub ok: bool,
    /// Each facility.
    pub checks: Vec<Check>,
}

/// One facility.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What it is.
    pub facility: String,
    /// First kernel to have it, or what else it comes with.
    pub since: String,
    /// Whether it is there; `None` if this process may not find out.
    pub ok: Option<bool>,
    /// Whether sidetrack does without it.
    pub optional: bool,
    /// What sidetrack loses without it.
    pub without: String,
    /// What was seen and what to do, if it is not there or not ready to use.
    pub problem: Option<String>,
}

/// A facility that is not there, or is there and needs something done first.
enum Lack {
    Missing(String),
    Unprepared(String),
}

impl From<String> for Lack {
    fn from(problem: String) -> Self {
        Self::Missing(problem)
    }
}

const CAPABILITIES: &str = "capabilities of root";

/// Tries everything.
#[must_use]
pub fn node(bpffs: &Path, pods_cgroup: Option<&Path>) -> Report {
    let mut checks = vec![
        check(CAPABILITIES, "5.8", "nothing can be loaded", capabilities()),
        check(
            "BTF of the kernel",
            "5.4, CONFIG_DEBUG_INFO_BTF",
            "socket owners are unknown",
            layout(),
        ),
        check(
            "bpf filesystem",
            "4.4",
            "hooks would not outlive the agent",
            pins(bpffs),
        ),
        check(
            "cgroup2",
            "4.5",
            "there is nothing to attach to",
            cgroup2(pods_cgroup),
        ),
    ];
    checks.extend(facilities());
    let may = capabilities().is_ok();
    let needs_capabilities =
        |check: &Check| check.ok == Some(false) && check.facility != CAPABILITIES;
    for check in checks
        .iter_mut()
        .filter(|check| !may && needs_capabilities(check))
    {
        check.ok = None;
        check.problem = None;
    }
    Report {
        kernel: release(),
        ok: checks
            .iter()
            .all(|check| check.optional || check.ok == Some(true)),
        checks,
    }
}

/// Whether the kernel has everything the kernel programs need, as far as it cannot be cured by mounting
/// something; the error names what it has not.
///
/// # Errors
/// If a facility is missing.
pub fn kernel() -> Result<(), String> {
    let missing: Vec<String> = facilities()
        .iter()
        .filter(|check| check.ok == Some(false) && !check.optional)
        .map(|check| {
            format!(
                "\n  {} (Linux {}): without it {}",
                check.facility, check.since, check.without
            )
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the kernel, {}, cannot run sidetrack; it lacks{}",
        release(),
        missing.concat()
    ))
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(
        |_| "unknown".to_owned(),
        |release| release.trim().to_owned(),
    )
}

/// Names facilities to do without, for tests of what is lost on kernels that lack them.
const WITHOUT: &str = "SIDETRACK_WITHOUT";

fn does_without(facility: &str) -> bool {
    std::env::var(WITHOUT).is_ok_and(|names| names.split(',').any(|name| name == facility))
}

/// Whether a refused connect can be given an errno.
#[must_use]
pub fn set_retval() -> bool {
    !does_without("set_retval")
        && program(
            bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
            bpf_attach_type::BPF_CGROUP_INET4_CONNECT,
            Some(bpf_func_id::BPF_FUNC_set_retval),
        )
        .is_ok()
}

/// Whether sk_lookup says on which interface a connection arrives.
#[must_use]
pub fn ingress_ifindex() -> bool {
    const LOAD_WORD: u8 = 0x61;
    // Where struct bpf_sk_lookup of linux/bpf.h has it.
    const OFFSET: i16 = 64;
    // Into r0, from the context in r1.
    let read = bpf_insn {
        off: OFFSET,
        _bitfield_1: bpf_insn::new_bitfield_1(0, 1),
        ..instruction(LOAD_WORD, 0, 0)
    };
    !does_without("ingress_ifindex")
        && load(
            bpf_prog_type::BPF_PROG_TYPE_SK_LOOKUP,
            bpf_attach_type::BPF_SK_LOOKUP,
            &[read],
        )
        .is_ok()
}

/// What the kernel programs are made of.
fn facilities() -> Vec<Check> {
    // Linux before 5.11 counts maps against this, and a map that cannot be had now is not unknown.
    let none = nix::sys::resource::RLIM_INFINITY;
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK, none, none);
    let cgroup_program = |facility, since, attach_type, helper| {
        let program_type = bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR;
        let without = "outbound connections are not captured";
        check(
            facility,
            since,
            without,
            program(program_type, attach_type, helper),
        )
    };
    vec![
        check(
            "sock_diag for TCP",
            "3.3, CONFIG_INET_DIAG",
            "pods that already run cannot be enrolled",
            sock_diag(),
        ),
        cgroup_program(
            "cgroup/connect4",
            "4.17",
            bpf_attach_type::BPF_CGROUP_INET4_CONNECT,
            None,
        ),
        cgroup_program(
            "cgroup/connect6",
            "4.17",
            bpf_attach_type::BPF_CGROUP_INET6_CONNECT,
            None,
        ),
        cgroup_program(
            "bpf_get_netns_cookie in connect",
            "5.7",
            bpf_attach_type::BPF_CGROUP_INET4_CONNECT,
            Some(bpf_func_id::BPF_FUNC_get_netns_cookie),
        ),
        optional(
            "bpf_set_retval in connect",
            "5.18",
            "a refused connect always fails with EPERM",
            set_retval(),
        ),
        check(
            "cgroup/getpeername4 and 6",
            "5.8",
            "applications see the sidecar as their peer",
            program(
                bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
                bpf_attach_type::BPF_CGROUP_INET4_GETPEERNAME,
                None,
            ),
        ),
        check(
            "sockops",
            "4.13",
            "the sidecar cannot learn the original destination",
            program(
                bpf_prog_type::BPF_PROG_TYPE_SOCK_OPS,
                bpf_attach_type::BPF_CGROUP_SOCK_OPS,
                None,
            ),
        ),
        check(
            "bpf_get_netns_cookie in sockops",
            "5.15",
            "the sidecar cannot learn the original destination",
            program(
                bpf_prog_type::BPF_PROG_TYPE_SOCK_OPS,
                bpf_attach_type::BPF_CGROUP_SOCK_OPS,
                Some(bpf_func_id::BPF_FUNC_get_netns_cookie),
            ),
        ),
        check(
            "cgroup/getsockopt",
            "5.3",
            "the sidecar cannot learn the original destination",
            program(
                bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCKOPT,
                bpf_attach_type::BPF_CGROUP_GETSOCKOPT,
                None,
            ),
        ),
        check(
            "sk_lookup",
            "5.9",
            "inbound connections are not captured",
            program(
                bpf_prog_type::BPF_PROG_TYPE_SK_LOOKUP,
                bpf_attach_type::BPF_SK_LOOKUP,
                None,
            ),
        ),
        optional(
            "ingress interface in sk_lookup",
            "5.17",
            "pods whose policy names interfaces are not enrolled",
            ingress_ifindex(),
        ),
        check(
            "socket storage map",
            "5.2",
            "no connection can be remembered",
            storage_map(),
        ),
        check(
            "sockhash map with lookup",
            "4.18",
            "inbound connections are not captured",
            map(bpf_map_type::BPF_MAP_TYPE_SOCKHASH, 8, 0),
        ),
        check(
            "longest-prefix trie map",
            "4.11",
            "no routes, no CIDR lists",
            map(bpf_map_type::BPF_MAP_TYPE_LPM_TRIE, 8, BPF_F_NO_PREALLOC),
        ),
        check(
            "ring buffer map",
            "5.8",
            "the kernel programs cannot log",
            ring_buffer(),
        ),
        check(
            "network namespace cookie",
            "5.14",
            "pods cannot be told apart",
            netns_cookie(),
        ),
        check(
            "pidfd_getfd",
            "5.6",
            "running sidecars need a restart",
            pidfd_getfd(),
        ),
    ]
}

fn check(facility: &str, since: &str, without: &str, result: Result<(), impl Into<Lack>>) -> Check {
    let (ok, problem) = match result.map_err(Into::into) {
        Ok(()) => (Some(true), None),
        Err(Lack::Unprepared(problem)) => (Some(true), Some(problem)),
        Err(Lack::Missing(problem)) => (Some(false), Some(problem)),
    };
    Check {
        facility: facility.to_owned(),
        since: since.to_owned(),
        ok,
        optional: false,
        without: without.to_owned(),
        problem,
    }
}

fn optional(facility: &str, since: &str, without: &str, there: bool) -> Check {
    let result = if there {
        Ok(())
    } else {
        Err("sidetrack does without it".to_owned())
    };
    Check {
        optional: true,
        ..check(facility, since, without, result)
    }
}

/// Whether this process may do what the agent does; the error names what is missing and the cure.
///
/// # Errors
/// If a capability is missing. Bit numbers are those of linux/capability.h.
pub fn capabilities() -> Result<(), String> {
    const NEEDED: [(u32, &str); 5] = [
        (12, "CAP_NET_ADMIN"),
        (19, "CAP_SYS_PTRACE"),
        (21, "CAP_SYS_ADMIN"),
        (38, "CAP_PERFMON"),
        (39, "CAP_BPF"),
    ];
    let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or("no CapEff in /proc/self/status")?;
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(bit, _)| effective & 1 << bit == 0)
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("missing {}: run as root", missing.join(", ")))
    }
}

fn layout() -> Result<(), String> {
    kernel_layout::offsets()
        .map(drop)
        .map_err(|error| error.to_string())
}

fn pins(bpffs: &Path) -> Result<(), Lack> {
    mountable(
        "bpf",
        Pins::new(bpffs)
            .map(drop)
            .map_err(|error| error.to_string()),
    )
}

fn sock_diag() -> Result<(), Lack> {
    let family = netlink_packet_sock_diag::constants::AF_INET;
    match crate::kernel::sock_diag::listeners(family) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string().into()),
    }
}

fn cgroup2(given: Option<&Path>) -> Result<(), Lack> {
    mountable(
        "cgroup2",
        cgroup::find(given)
            .map(drop)
            .map_err(|error| format!("{error:#}")),
    )
}

/// A file system that the kernel knows and nobody has mounted is only to be mounted.
fn mountable(fs_type: &str, found: Result<(), String>) -> Result<(), Lack> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known
        .lines()
        .any(|line| line.split_whitespace().last() == Some(fs_type));
    found.map_err(|problem| {
        if known {
            Lack::Unprepared(problem)
        } else {
            Lack::Missing(format!("the kernel has no file system {fs_type}"))
        }
    })
}

/// Loads the smallest program of a type, calling a helper if one is given.
fn program(
    program_type: bpf_prog_type,
    attach_type: bpf_attach_type,
    helper: Option<bpf_func_id>,
) -> Result<(), String> {
    const CALL: u8 = 0x85;
    let mut instructions = Vec::new();
    if let Some(helper) = helper {
        if helper == bpf_func_id::BPF_FUNC_set_retval {
            instructions.push(instruction(MOV64_IMM, 1, 0));
        }
        instructions.push(instruction(CALL, 0, helper as i32));
    }
    load(program_type, attach_type, &instructions)
}

const MOV64_IMM: u8 = 0xb7;

/// Loads instructions, followed by `return 1`.
fn load(
    program_type: bpf_prog_type,
    attach_type: bpf_attach_type,
    instructions: &[bpf_insn],
) -> Result<(), String> {
    const EXIT: u8 = 0x95;
    let end = [instruction(MOV64_IMM, 0, 1), instruction(EXIT, 0, 0)];
    let instructions = [instructions, &end].concat();
    sys::program_load(program_type, Some(attach_type), "st_probe", &instructions)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn instruction(code: u8, dst: u8, imm: i32) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(dst, 0),
        off: 0,
        imm,
    }
}

fn map(map_type: bpf_map_type, value_size: u32, flags: u32) -> Result<(), String> {
    created(sys::map_create(
        map_type, "st_probe", 8, value_size, 4, flags,
    ))
}

fn ring_buffer() -> Result<(), String> {
    const PAGE: u32 = 4096;
    created(sys::map_create(
        bpf_map_type::BPF_MAP_TYPE_RINGBUF,
        "st_probe",
        0,
        0,
        PAGE,
        0,
    ))
}

fn storage_map() -> Result<(), String> {
    const MAGIC_VERSION_FLAGS: u32 = 0x0001_eb9f;
    const HEADER: u32 = 24;
    const TYPES: u32 = 16;
    const KIND_INT: u32 = 1 << 24;
    // A header, one 32-bit integer type named "i", and its name.
    let words = [
        MAGIC_VERSION_FLAGS,
        HEADER,
        0,
        TYPES,
        TYPES,
        3,
        1,
        KIND_INT,
        4,
        32,
    ];
    let mut btf: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    btf.extend(b"\0i\0");
    created(sys::btf_load(&btf).and_then(|btf| sys::storage_map_create("st_probe", btf.as_fd(), 1)))
}

fn created(result: std::io::Result<OwnedFd>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

fn netns_cookie() -> Result<(), String> {
    const SO_NETNS_COOKIE: i32 = 71;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    sys::socket_option_u64(socket.as_fd(), SO_NETNS_COOKIE)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn pidfd_getfd() -> Result<(), String> {
    let own = std::process::id() as i32;
    sys::pidfd_open(own)
        .and_then(|pidfd| sys::pidfd_getfd(&pidfd, 0))
        .map(drop)
        .map_err(|error| error.to_string())
}
