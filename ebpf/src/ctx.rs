//! Typed views of the kernel's context structs.
//!
//! LLVM merges and reorders plain accesses to these structs, and the verifier then rejects them
//! ("invalid bpf_context access ... size=8", "dereference of modified ctx ptr"). Every access here is
//! therefore volatile and of the field's exact width, and is kept from being merged with another.
//! Addresses and ports leave this module as [`sidetrack_common::addr::Addr`] and host-order integers.

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
        let v6 = [
            field!($ptr, $v6[0]),
            field!($ptr, $v6[1]),
            field!($ptr, $v6[2]),
            field!($ptr, $v6[3]),
        ];
        sidetrack_common::addr::Addr::of_family(field!($ptr, family), v4, v6)
    }};
}

pub(crate) use {addr_field, field, set_field};
