//! Loads small programs to find out what the kernel's verifier accepts.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::OnceLock,
};

use aya_obj::generated::{
    bpf_attach_type::{self, *},
    bpf_func_id::{self, *},
    bpf_insn,
    bpf_prog_type::{self, *},
};

use crate::kernel::{forwarding, kernel_layout, sys};

const MOV64_IMM: u8 = 0xb7;
const CALL: u8 = 0x85;
const LOAD_DOUBLE_WORD: u8 = 0x79;

/// Names facilities to treat as missing, so that tests can show what is lost on kernels without them.
const WITHOUT: &str = "SIDETRACK_WITHOUT";

fn is_disabled(facility: &str) -> bool {
    std::env::var(WITHOUT).is_ok_and(|names| names.split(',').any(|name| name == facility))
}

/// Whether programs can choose the errno of a refused connect.
#[must_use]
pub fn set_retval() -> bool {
    !is_disabled("set_retval")
        && program(BPF_CGROUP_INET4_CONNECT, Some(BPF_FUNC_set_retval)).is_ok()
}

/// Whether sk_lookup programs can read the interface a connection arrives on.
#[must_use]
pub fn ingress_ifindex() -> bool {
    const LOAD_WORD: u8 = 0x61;
    // Of the member in struct bpf_sk_lookup of linux/bpf.h.
    const OFFSET: i16 = 64;
    // Into r0, from the context in r1.
    let read = bpf_insn {
        off: OFFSET,
        _bitfield_1: bpf_insn::new_bitfield_1(0, 1),
        ..instruction(LOAD_WORD, 0, 0)
    };
    !is_disabled("ingress_ifindex") && load(BPF_SK_LOOKUP, &[read]).is_ok()
}

/// Whether programs can be attached to what an interface receives, by a link or by a tc filter.
#[must_use]
pub fn ingress_programs() -> bool {
    if is_disabled("ingress_programs") {
        return false;
    }
    ingress_links()
        || load(BPF_CGROUP_INET_INGRESS, &[]).is_ok_and(|program| forwarding::work(program.as_fd()))
}

/// Whether links attach them (tcx, Linux 6.6).
#[must_use]
pub fn ingress_links() -> bool {
    /// Of no interface: the kernel looks for it before anything else.
    const NO_INTERFACE: u32 = i32::MAX as u32;
    if is_disabled("tcx") {
        return false;
    }
    let program = load(BPF_TCX_INGRESS, &[]);
    let attached = program.and_then(|program| {
        sys::link_create_ingress(program.as_fd(), NO_INTERFACE, sys::Order::Last)
    });
    attached.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}

/// Whether a program can give an arriving packet to a listener with `SO_REUSEPORT` (Linux 6.6). That takes a packet that
/// arrives, so the function is looked for that came with it: RHEL 9.6 has the links without it.
#[must_use]
pub fn shared_listeners() -> bool {
    // The kernel's BTF has megabytes, and every pod in ambient mode asks, again with each change of its network.
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE.get_or_init(|| {
        !is_disabled("shared_listeners")
            && kernel_layout::has_function("inet_lookup_reuseport").unwrap_or(false)
    })
}

/// Whether connect can find the MPTCP socket that a subflow belongs to.
#[must_use]
pub fn mptcp_parent() -> bool {
    let call = instruction(CALL, 0, BPF_FUNC_skc_to_mptcp_sock as i32);
    !is_disabled("mptcp_parent") && load(BPF_CGROUP_INET4_CONNECT, &[socket(), call]).is_ok()
}

/// Whether connect can follow pointers in the kernel's structs.
pub(super) fn typed_loads() -> io::Result<OwnedFd> {
    const JUMP_IF_ZERO: u8 = 0x15;
    let call = instruction(CALL, 0, BPF_FUNC_skc_to_tcp_sock as i32);
    let unless_null = bpf_insn {
        off: 1,
        ..instruction(JUMP_IF_ZERO, 0, 0)
    };
    // The first field, into r0.
    let field = instruction(LOAD_DOUBLE_WORD, 0, 0);
    let code = [socket(), call, unless_null, field];
    load(BPF_CGROUP_INET4_CONNECT, &code)
}

/// Whether programs of UDP sockets can read the kernel's memory by address, as those of DNS capture do.
pub(super) fn reads_of_kernel_memory() -> io::Result<OwnedFd> {
    load(BPF_CGROUP_UDP4_SENDMSG, &read_of_kernel_memory())
}

/// Whether getsockopt programs can, to find out which end of a connection has connected.
#[must_use]
pub fn read_kernel() -> bool {
    !is_disabled("read_kernel") && load(BPF_CGROUP_GETSOCKOPT, &read_of_kernel_memory()).is_ok()
}

/// Copies eight bytes at address 0, which the helper checks, to the stack.
fn read_of_kernel_memory() -> [bpf_insn; 5] {
    const MOV64_REGISTER: u8 = 0xbf;
    const ADD64_IMM: u8 = 0x07;
    let frame = bpf_insn {
        _bitfield_1: bpf_insn::new_bitfield_1(1, 10),
        ..instruction(MOV64_REGISTER, 1, 0)
    };
    [
        frame,
        instruction(ADD64_IMM, 1, -8),
        instruction(MOV64_IMM, 2, 8),
        instruction(MOV64_IMM, 3, 0),
        instruction(CALL, 0, BPF_FUNC_probe_read_kernel as i32),
    ]
}

/// Loads the socket of a connect into r1, from the context in r1.
fn socket() -> bpf_insn {
    // Of the member `sk` in struct bpf_sock_addr of linux/bpf.h.
    const OFFSET: i16 = 64;
    bpf_insn {
        off: OFFSET,
        _bitfield_1: bpf_insn::new_bitfield_1(1, 1),
        ..instruction(LOAD_DOUBLE_WORD, 1, 0)
    }
}

/// What [`smallest`] is attached to.
pub(super) const SMALLEST: bpf_attach_type = BPF_CGROUP_INET4_CONNECT;

/// A program that allows every connection.
pub(super) fn smallest() -> io::Result<OwnedFd> {
    load(SMALLEST, &[])
}

/// Loads the smallest program that is attached so. It calls a helper, if one is given.
pub(super) fn program(
    attach_type: bpf_attach_type,
    helper: Option<bpf_func_id>,
) -> io::Result<OwnedFd> {
    let mut instructions = Vec::new();
    if let Some(helper) = helper {
        if helper == BPF_FUNC_set_retval {
            instructions.push(instruction(MOV64_IMM, 1, 0));
        }
        instructions.push(instruction(CALL, 0, helper as i32));
    }
    load(attach_type, &instructions)
}

/// Loads instructions, followed by `return 1`.
fn load(attach_type: bpf_attach_type, instructions: &[bpf_insn]) -> io::Result<OwnedFd> {
    const EXIT: u8 = 0x95;
    let end = [instruction(MOV64_IMM, 0, 1), instruction(EXIT, 0, 0)];
    let instructions = [instructions, &end].concat();
    let program_type = type_of(attach_type);
    sys::program_load(program_type, Some(attach_type), "st_probe", &instructions)
}

/// The type of the programs that are attached so. tc filters have no attach type of their own: it is 0.
const fn type_of(attach_type: bpf_attach_type) -> bpf_prog_type {
    match attach_type {
        BPF_SK_LOOKUP => BPF_PROG_TYPE_SK_LOOKUP,
        BPF_CGROUP_SOCK_OPS => BPF_PROG_TYPE_SOCK_OPS,
        BPF_CGROUP_INET_SOCK_RELEASE => BPF_PROG_TYPE_CGROUP_SOCK,
        BPF_CGROUP_GETSOCKOPT | BPF_CGROUP_SETSOCKOPT => BPF_PROG_TYPE_CGROUP_SOCKOPT,
        BPF_CGROUP_INET_INGRESS | BPF_TCX_INGRESS => BPF_PROG_TYPE_SCHED_CLS,
        _ => BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
    }
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
