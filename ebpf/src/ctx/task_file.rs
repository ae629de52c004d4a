//! `struct bpf_iter__task_file`: one open file of a process.

use core::ffi::c_void;

use aya_ebpf::helpers::{bpf_get_socket_cookie, generated::bpf_sock_from_file};

/// `struct bpf_iter__task_file` of kernel/bpf/task_iter.c.
#[repr(C)]
struct Context {
    meta: *mut c_void,
    task: *mut c_void,
    fd: u32,
    file: *mut c_void,
}

/// The members of `struct socket` of linux/net.h up to the one that is needed. The verifier checks the
/// offset against the kernel's BTF.
#[repr(C)]
struct Socket {
    state: u32,
    kind: u16,
    flags: u64,
    file: *mut c_void,
    sk: *mut c_void,
}

/// One open file of a process.
pub struct TaskFile {
    ctx: *mut Context,
}

impl TaskFile {
    /// Wraps the program's context.
    #[inline(always)]
    pub fn new(ctx: *mut c_void) -> Self {
        Self { ctx: ctx.cast() }
    }

    /// The number of the descriptor.
    #[inline(always)]
    pub fn fd(&self) -> u32 {
        // SAFETY: the program's own context; the verifier checks every access.
        unsafe { core::ptr::read_volatile(&raw const (*self.ctx).fd) }
    }

    /// The socket, if the file is one.
    #[inline(always)]
    pub fn socket(&self) -> Option<*mut c_void> {
        // SAFETY: the program's own context; the verifier checks every access.
        let file = unsafe { core::ptr::read_volatile(&raw const (*self.ctx).file) };
        if file.is_null() {
            return None;
        }
        // SAFETY: a file that the kernel holds while the program runs.
        let socket: *mut Socket = unsafe { bpf_sock_from_file(file.cast()) }.cast();
        if socket.is_null() {
            return None;
        }
        // SAFETY: the socket of that file; a fault reads as 0.
        let sk = unsafe { core::ptr::read_volatile(&raw const (*socket).sk) };
        (!sk.is_null()).then_some(sk)
    }
}

/// The cookie of a socket that [`TaskFile::socket`] returned.
#[inline(always)]
#[expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the helper checks the pointer"
)]
pub fn cookie(sk: *mut c_void) -> u64 {
    // SAFETY: the helper checks the socket.
    unsafe { bpf_get_socket_cookie(sk) }
}
