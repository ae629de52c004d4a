//! Typed views of the kernel's context structs.
//!
//! LLVM merges and reorders plain accesses to these structs, and the verifier then refuses them
//! ("invalid bpf_context access ... size=8"); every access here is volatile and of the field's
//! exact width. Addresses and ports leave this module as [`sidetrack_common::addr::Addr`] and
//! host-order integers.

mod owner;
pub mod sk_lookup;
pub mod sock_addr;
pub mod sock_ops;
pub mod sockopt;

/// `AF_INET`.
pub const AF_INET: u32 = 2;
/// `AF_INET6`.
pub const AF_INET6: u32 = 10;
/// `IPPROTO_TCP`.
pub const IPPROTO_TCP: u32 = 6;

/// Reads a context field.
macro_rules! field {
    ($ptr:expr, $($path:tt)+) => {
        // SAFETY: the pointer is the program's context or a socket from it, which the kernel keeps
        // valid for the run; the verifier checks offset and width of each access.
        unsafe { core::ptr::read_volatile(&raw const (*$ptr).$($path)+) }
    };
}

/// Writes a context field.
macro_rules! set_field {
    ($ptr:expr, $value:expr, $($path:tt)+) => {
        // SAFETY: as for reads; the verifier also checks that the field is writable.
        unsafe { core::ptr::write_volatile(&raw mut (*$ptr).$($path)+, $value) }
    };
}

pub(crate) use {field, set_field};
