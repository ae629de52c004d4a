//! The owner of a socket, read the way netfilter's owner match reads it.
//!
//! `xt_owner` compares the fsuid and fsgid in `sk->sk_socket->file->f_cred`, the credentials of
//! the process that opened the socket. Reading the same field at connect time is exact for every
//! socket, also for those opened before the programs were loaded. Sockets that never connect cost
//! nothing.

use core::ffi::c_void;

use aya_ebpf::{Global, bindings::bpf_sock, helpers::generated::bpf_probe_read_kernel};
use sidetrack_common::{decide::Owner, policy::NO_ID};

/// Offset of `sk_socket` in `struct sock`; all five are set by the loader from the kernel's BTF.
#[unsafe(no_mangle)]
static OFFSET_SOCK_SOCKET: Global<u32> = Global::new(0);
/// Offset of `file` in `struct socket`.
#[unsafe(no_mangle)]
static OFFSET_SOCKET_FILE: Global<u32> = Global::new(0);
/// Offset of `f_cred` in `struct file`.
#[unsafe(no_mangle)]
static OFFSET_FILE_CRED: Global<u32> = Global::new(0);
/// Offset of `fsuid` in `struct cred`.
#[unsafe(no_mangle)]
static OFFSET_CRED_FSUID: Global<u32> = Global::new(0);
/// Offset of `fsgid` in `struct cred`.
#[unsafe(no_mangle)]
static OFFSET_CRED_FSGID: Global<u32> = Global::new(0);

/// The owner of a socket; [`NO_ID`] for sockets without a file, as netfilter sees those.
#[inline(always)]
pub fn owner(sk: *mut bpf_sock) -> Owner {
    try_owner(sk).unwrap_or(Owner {
        uid: NO_ID,
        gid: NO_ID,
    })
}

#[inline(always)]
fn try_owner(sk: *mut bpf_sock) -> Option<Owner> {
    // The verifier forbids arithmetic on a socket pointer. Once it is spilled to the stack and read
    // back by the helper it is a number. probe_read_kernel checks every address computed from it.
    let mut spilled: *mut bpf_sock = core::ptr::null_mut();
    // SAFETY: a local variable.
    unsafe { core::ptr::write_volatile(&raw mut spilled, sk) };
    let sock: u64 = read((&raw const spilled).cast())?;
    let socket = pointer(sock, &OFFSET_SOCK_SOCKET)?;
    let file = pointer(socket, &OFFSET_SOCKET_FILE)?;
    let cred = pointer(file, &OFFSET_FILE_CRED)?;
    Some(Owner {
        uid: at(cred, &OFFSET_CRED_FSUID)?,
        gid: at(cred, &OFFSET_CRED_FSGID)?,
    })
}

#[inline(always)]
fn pointer(base: u64, offset: &Global<u32>) -> Option<u64> {
    let value: u64 = at(base, offset)?;
    (value != 0).then_some(value)
}

#[inline(always)]
fn at<T: Copy + Default>(base: u64, offset: &Global<u32>) -> Option<T> {
    read((base + u64::from(offset.load())) as *const c_void)
}

#[inline(always)]
fn read<T: Copy + Default>(from: *const c_void) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the destination is a local of the given size; the source may be any address, the
    // helper fails on a bad one.
    let failed = unsafe {
        bpf_probe_read_kernel(
            (&raw mut value).cast(),
            size_of::<T>() as u32,
            from.cast_mut().cast(),
        )
    };
    (failed == 0).then_some(value)
}
