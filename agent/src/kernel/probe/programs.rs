//! Loads small programs to find out what the kernel's verifier accepts.

use aya_obj::generated::{bpf_attach_type, bpf_func_id, bpf_insn, bpf_prog_type};

use crate::kernel::sys;

const MOV64_IMM: u8 = 0xb7;
const CALL: u8 = 0x85;

/// Names facilities to treat as missing, so that tests can show what is lost on kernels without them.
const WITHOUT: &str = "SIDETRACK_WITHOUT";

fn is_disabled(facility: &str) -> bool {
    std::env::var(WITHOUT).is_ok_and(|names| names.split(',').any(|name| name == facility))
}

/// Whether programs can choose the errno of a refused connect.
#[must_use]
pub fn set_retval() -> bool {
    !is_disabled("set_retval")
        && program(
            bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
            bpf_attach_type::BPF_CGROUP_INET4_CONNECT,
            Some(bpf_func_id::BPF_FUNC_set_retval),
        )
        .is_ok()
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
    !is_disabled("ingress_ifindex")
        && load(
            bpf_prog_type::BPF_PROG_TYPE_SK_LOOKUP,
            bpf_attach_type::BPF_SK_LOOKUP,
            &[read],
        )
        .is_ok()
}

/// Whether connect can find the MPTCP socket that a subflow belongs to.
#[must_use]
pub fn mptcp_parent() -> bool {
    const LOAD_DOUBLE_WORD: u8 = 0x79;
    // Of the member `sk` in struct bpf_sock_addr of linux/bpf.h.
    const OFFSET: i16 = 64;
    // Into r1, from the context in r1.
    let read = bpf_insn {
        off: OFFSET,
        _bitfield_1: bpf_insn::new_bitfield_1(1, 1),
        ..instruction(LOAD_DOUBLE_WORD, 1, 0)
    };
    let call = instruction(CALL, 0, bpf_func_id::BPF_FUNC_skc_to_mptcp_sock as i32);
    !is_disabled("mptcp_parent")
        && load(
            bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
            bpf_attach_type::BPF_CGROUP_INET4_CONNECT,
            &[read, call],
        )
        .is_ok()
}

/// Whether programs may read kernel memory, which lockdown=confidentiality forbids.
pub(super) fn read_kernel() -> Result<(), String> {
    const MOV64_REG: u8 = 0xbf;
    const ADD64_IMM: u8 = 0x07;
    // Eight bytes at address 0, which fails when it runs, onto the stack.
    let frame = bpf_insn {
        _bitfield_1: bpf_insn::new_bitfield_1(1, 10),
        ..instruction(MOV64_REG, 1, 0)
    };
    let size = 8;
    load(
        bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        bpf_attach_type::BPF_CGROUP_INET4_CONNECT,
        &[
            frame,
            instruction(ADD64_IMM, 1, -size),
            instruction(MOV64_IMM, 2, size),
            instruction(MOV64_IMM, 3, 0),
            instruction(CALL, 0, bpf_func_id::BPF_FUNC_probe_read_kernel as i32),
        ],
    )
}

/// Loads the smallest program of a type. It calls a helper, if one is given.
pub(super) fn program(
    program_type: bpf_prog_type,
    attach_type: bpf_attach_type,
    helper: Option<bpf_func_id>,
) -> Result<(), String> {
    let mut instructions = Vec::new();
    if let Some(helper) = helper {
        if helper == bpf_func_id::BPF_FUNC_set_retval {
            instructions.push(instruction(MOV64_IMM, 1, 0));
        }
        instructions.push(instruction(CALL, 0, helper as i32));
    }
    load(program_type, attach_type, &instructions)
}

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
