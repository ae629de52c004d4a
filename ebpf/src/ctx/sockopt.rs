//! `struct bpf_sockopt`: getsockopt and setsockopt.

use core::ffi::c_void;

use aya_ebpf::{bindings::bpf_sock, programs::SockoptContext};
use sidetrack_common::addr::{Addr, Family};

use super::{
    AF_INET, AF_INET6, IPPROTO_MPTCP, IPPROTO_TCP, addr_field, field, netns, number, offsets,
    set_field, sock_map::OFFSET_SOCK_MAX_ACK_BACKLOG,
};

/// Level of IPv4's options.
pub const SOL_IP: i32 = 0;
/// Level of IPv6's.
pub const SOL_IPV6: i32 = 41;

offsets! {
    OFFSET_ICSK_BIND_HASH,
    OFFSET_BUCKET_FASTREUSE,
}

/// Whether [`SockOpt::has_connected`] finds out: no helper makes a typed pointer of the socket of getsockopt.
#[inline(always)]
pub fn detects_who_connected() -> bool {
    number::can_load()
}

/// A getsockopt call on its way back to the caller, or a setsockopt call on its way into the kernel.
pub struct SockOpt<'a> {
    /// aya's context.
    pub inner: &'a SockoptContext,
}

impl SockOpt<'_> {
    /// `SOL_*` of the call.
    #[inline(always)]
    pub fn level(&self) -> i32 {
        field!(self.inner.sockopt, level)
    }

    /// Option of the call.
    #[inline(always)]
    pub fn name(&self) -> i32 {
        field!(self.inner.sockopt, optname)
    }

    /// Whether the call has a value.
    #[inline(always)]
    pub fn has_value(&self) -> bool {
        field!(self.inner.sockopt, optlen) != 0
    }

    /// Whether the call has succeeded, in the kernel or in an earlier program.
    #[inline(always)]
    pub fn has_result(&self) -> bool {
        field!(self.inner.sockopt, retval) == 0
    }

    #[inline(always)]
    fn sk(&self) -> *mut bpf_sock {
        field!(self.inner.sockopt, __bindgen_anon_1.sk)
    }

    /// The socket, for its record.
    #[inline(always)]
    pub fn socket(&self) -> *mut c_void {
        self.sk().cast()
    }

    /// Whether this is a TCP socket. The protocols of other families have numbers of their own: NETLINK_XFRM has that of
    /// TCP.
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        let sk = self.sk();
        field!(sk, protocol) == IPPROTO_TCP && matches!(field!(sk, family), AF_INET | AF_INET6)
    }

    /// Whether this is a TCP socket, or one of MPTCP, which passes its options on to its subflows.
    #[inline(always)]
    pub fn is_stream(&self) -> bool {
        self.is_tcp() || field!(self.sk(), protocol) == IPPROTO_MPTCP
    }

    /// Cookie of the socket's network namespace.
    #[inline(always)]
    pub fn netns(&self) -> u64 {
        netns(self.inner)
    }

    /// TCP state: `BPF_TCP_*`.
    #[inline(always)]
    pub fn state(&self) -> u32 {
        field!(self.sk(), state)
    }

    /// Whether this end has connected, to a port that the kernel chose for it. False if that is not known.
    ///
    /// A socket that was accepted has the backlog of its listener, which may be 0. Therefore the port has to be one that
    /// the kernel chooses for sockets that connect, too: it marks those (`__inet_hash_connect`).
    #[inline(always)]
    pub fn has_connected(&self) -> bool {
        detects_who_connected() && self.is_unmarked_by_listen().unwrap_or_default()
    }

    #[inline(always)]
    fn is_unmarked_by_listen(&self) -> Option<bool> {
        let sk = number::of_pointer(self.socket())?;
        let backlog: u32 = number::load_at(sk, &OFFSET_SOCK_MAX_ACK_BACKLOG)?;
        let bucket: usize = number::load_at(sk, &OFFSET_ICSK_BIND_HASH)?;
        if backlog != 0 || bucket == 0 {
            return Some(false);
        }
        let reuse: i8 = number::load_at(bucket, &OFFSET_BUCKET_FASTREUSE)?;
        Some(reuse == -1)
    }

    /// The socket's own address and port (host order).
    #[inline(always)]
    pub fn local(&self) -> (Addr, u16) {
        let sk = self.sk();
        (
            addr_field!(sk, src_ip4, src_ip6),
            field!(sk, src_port) as u16,
        )
    }

    /// The peer's address and port (host order).
    #[inline(always)]
    pub fn remote(&self) -> (Addr, u16) {
        let sk = self.sk();
        (
            addr_field!(sk, dst_ip4, dst_ip6),
            u16::from_be(field!(sk, dst_port)),
        )
    }

    /// Leaves the kernel's result, or the caller's value, alone. With a length of 0 the kernel does not copy the program's
    /// buffer, which has at most one page, back over the caller's, which may be longer.
    #[inline(always)]
    pub fn keep_result(&self) {
        set_field!(self.inner.sockopt, 0, optlen);
    }

    /// Returns a socket address, like netfilter's getorigdst. Leaves the kernel's result when the
    /// caller's buffer is too short.
    #[inline(always)]
    pub fn set_result(&self, addr: Addr, port: u16) {
        let fits = match addr.family() {
            Family::V4 => self.put(&[family_and_port(AF_INET, port), addr.to_v4_be(), 0, 0]),
            Family::V6 => {
                let words = addr.to_v6_be();
                self.put(&[
                    family_and_port(AF_INET6, port),
                    0,
                    words[0],
                    words[1],
                    words[2],
                    words[3],
                    0,
                ])
            }
        };
        if fits {
            set_field!(self.inner.sockopt, 0, retval);
        } else {
            self.keep_result();
        }
    }

    /// The socket address of a family in the call's result.
    #[inline(always)]
    pub fn result(&self, family: Family) -> Option<(Addr, u16)> {
        match family {
            Family::V4 => {
                let [first, addr] = self.take()?;
                Some((Addr::from_v4_be(addr), port(first)))
            }
            Family::V6 => {
                let [first, _, a, b, c, d] = self.take()?;
                Some((Addr::from_v6_be([a, b, c, d]), port(first)))
            }
        }
    }

    #[inline(always)]
    fn take<const WORDS: usize>(&self) -> Option<[u32; WORDS]> {
        let start = field!(self.inner.sockopt, __bindgen_anon_2.optval) as usize;
        let end = field!(self.inner.sockopt, __bindgen_anon_3.optval_end) as usize;
        if start + WORDS * 4 > end {
            return None;
        }
        let buffer = start as *const u32;
        let mut words = [0; WORDS];
        for (position, word) in words.iter_mut().enumerate() {
            // SAFETY: inside the buffer, as just compared; the verifier checks the same.
            *word = unsafe { core::ptr::read_volatile(buffer.add(position)) };
        }
        Some(words)
    }

    #[inline(always)]
    fn put<const WORDS: usize>(&self, words: &[u32; WORDS]) -> bool {
        let start = field!(self.inner.sockopt, __bindgen_anon_2.optval) as usize;
        let end = field!(self.inner.sockopt, __bindgen_anon_3.optval_end) as usize;
        if start + WORDS * 4 > end {
            return false;
        }
        let buffer = start as *mut u32;
        for (position, word) in words.iter().enumerate() {
            // SAFETY: inside the buffer, as just compared; the verifier checks the same.
            unsafe { core::ptr::write_volatile(buffer.add(position), *word) };
        }
        set_field!(self.inner.sockopt, (WORDS * 4) as i32, optlen);
        true
    }
}

/// The first word of a socket address: family in native order, port in network order.
#[inline(always)]
fn family_and_port(family: u32, port: u16) -> u32 {
    let (f, p) = ((family as u16).to_ne_bytes(), port.to_be_bytes());
    u32::from_ne_bytes([f[0], f[1], p[0], p[1]])
}

/// The port in the first word of a socket address, host order.
#[inline(always)]
fn port(first: u32) -> u16 {
    let [_, _, high, low] = first.to_ne_bytes();
    u16::from_be_bytes([high, low])
}
