//! Typed views of the kernel's context structs.
//!
//! LLVM merges and reorders plain accesses to these structs, and the verifier then rejects them
//! ("invalid bpf_context access ... size=8", "dereference of modified ctx ptr"). Every access here is
//! therefore volatile and of the field's exact width, and is kept from being merged with another.
//! Addresses and ports leave this module as [`sidetrack_common::addr::Addr`] and host-order integers.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext, Global,
    bindings::bpf_sock,
    helpers::generated::{bpf_get_netns_cookie, bpf_skc_to_mptcp_sock},
};

pub mod decision;
mod interface;
mod ip_options;
pub mod number;
pub mod owner;
pub mod sk_lookup;
pub mod sk_msg;
pub mod sk_storage;
pub mod skb;
pub mod sock_addr;
pub mod sock_map;
pub mod sock_ops;
pub mod sockopt;
pub mod task;
pub mod task_file;
mod typed;

/// Whether the kernel has bpf_skc_to_mptcp_sock, which came with Linux 5.19.
#[unsafe(no_mangle)]
static CAN_SEE_MPTCP: Global<u8> = Global::new(0);

/// `AF_INET`.
pub const AF_INET: u32 = 2;
/// `AF_INET6`.
pub const AF_INET6: u32 = 10;
/// `IPPROTO_TCP`.
pub const IPPROTO_TCP: u32 = 6;
/// `IPPROTO_UDP`.
pub const IPPROTO_UDP: u32 = 17;
/// `IPPROTO_MPTCP`.
pub const IPPROTO_MPTCP: u32 = 262;

/// Offsets of members of the kernel's structs, in bytes, and bits in such bytes. The loader sets them from the kernel's
/// BTF; its `MEMBERS` say which is what.
macro_rules! offsets {
    ($($name:ident),+ $(,)?) => {
        $(#[unsafe(no_mangle)] pub(super) static $name: aya_ebpf::Global<u32> = aya_ebpf::Global::new(0);)+
    };
}

/// Reads a context field.
macro_rules! field {
    ($ptr:expr, $($path:tt)+) => {{
        // SAFETY: the pointer is the program's context or a socket from it, which the kernel keeps
        // valid for the run; the verifier checks offset and width of each access.
        unsafe { core::ptr::read_volatile(&raw const (*$ptr).$($path)+) }
    }};
}

/// Writes a context field.
macro_rules! set_field {
    ($ptr:expr, $value:expr, $($path:tt)+) => {{
        // SAFETY: as for reads; the verifier also checks that the field is writable.
        unsafe { core::ptr::write_volatile(&raw mut (*$ptr).$($path)+, $value) };
        $crate::ctx::keep_apart();
    }};
}

/// Ends a branch with something LLVM does not merge with the other branch's end. It would turn two
/// writes of one value to different fields into one write at a variable offset.
#[inline(always)]
pub fn keep_apart() {
    // SAFETY: it contains no instruction.
    unsafe { core::arch::asm!("") };
}

/// A pointer that LLVM does not know to be the same as another one.
#[inline(always)]
pub fn opaque<T>(mut pointer: *mut T) -> *mut T {
    // SAFETY: a move of a register to itself. Without an instruction two lines of debug info would be about the next one,
    // and the kernel refuses that.
    unsafe { core::arch::asm!("{0} = {0}", inout(reg) pointer) };
    pointer
}

/// Reads an address of IPv4 or IPv6, which the context has in a field for each. The kernel allows to read both, whatever the
/// family is.
macro_rules! addr_field {
    ($ptr:expr, $v4:ident, $v6:ident) => {{
        let v4 = field!($ptr, $v4);
        let v6 = $crate::ctx::words!($ptr, $v6);
        sidetrack_common::addr::Addr::of_family(field!($ptr, family), v4, v6)
    }};
}

/// The same where the attach point of the program gives the family.
macro_rules! addr_field_of {
    ($is_v6:expr, $ptr:expr, $v4:ident, $v6:ident) => {
        if $is_v6 {
            sidetrack_common::addr::Addr::from_v6_be($crate::ctx::words!($ptr, $v6))
        } else {
            sidetrack_common::addr::Addr::from_v4_be(field!($ptr, $v4))
        }
    };
}

/// Reads the four words of a field.
macro_rules! words {
    ($ptr:expr, $field:ident) => {
        [
            field!($ptr, $field[0]),
            field!($ptr, $field[1]),
            field!($ptr, $field[2]),
            field!($ptr, $field[3]),
        ]
    };
}

/// Writes an address where the attach point gives the family.
macro_rules! set_addr_field_of {
    ($is_v6:expr, $ptr:expr, $addr:expr, $v4:ident, $v6:ident) => {
        if $is_v6 {
            let words = $addr.to_v6_be();
            set_field!($ptr, words[0], $v6[0]);
            set_field!($ptr, words[1], $v6[1]);
            set_field!($ptr, words[2], $v6[2]);
            set_field!($ptr, words[3], $v6[3]);
        } else {
            set_field!($ptr, $addr.to_v4_be(), $v4);
        }
    };
}

/// Cookie of the network namespace of a program's socket.
#[inline(always)]
pub fn netns(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: the helper takes the program's own context.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

/// The MPTCP socket that a socket is a subflow of, if it is one.
#[inline(always)]
fn mptcp_parent(sk: *mut bpf_sock) -> Option<*mut c_void> {
    if CAN_SEE_MPTCP.load() == 0 || sk.is_null() {
        return None;
    }
    // SAFETY: a socket from the context; the helper returns null for one that is not a subflow.
    let parent = unsafe { bpf_skc_to_mptcp_sock(sk.cast()) };
    (!parent.is_null()).then_some(parent.cast())
}

pub(crate) use {addr_field, addr_field_of, field, offsets, set_addr_field_of, set_field, words};
