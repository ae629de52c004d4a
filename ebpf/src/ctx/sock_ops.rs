//! `struct bpf_sock_ops`: state changes of a TCP socket.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext as _,
    bindings::{BPF_SOCK_OPS_STATE_CB_FLAG, bpf_sock},
    helpers::generated::bpf_get_socket_cookie,
    programs::SockOpsContext,
};
use sidetrack_common::{addr::Addr, decide::Owner, pod::LOOPBACK_IFINDEX};

use super::{
    AF_INET6, addr_field, field, mptcp_parent, netns, offsets, owner,
    typed::{load, tcp_sock},
};

offsets! {
    OFFSET_SOCK_ERR,
    OFFSET_SOCK_V6ONLY,
    MASK_SOCK_V6ONLY,
}

/// A callback on a TCP socket.
pub struct SockOps<'a> {
    /// aya's context.
    pub inner: &'a SockOpsContext,
}

impl SockOps<'_> {
    /// The callback: `BPF_SOCK_OPS_*`.
    #[inline(always)]
    pub fn op(&self) -> u32 {
        field!(self.inner.ops, op)
    }

    /// The state a socket leaves, in a state callback: `BPF_TCP_*`.
    #[inline(always)]
    pub fn old_state(&self) -> u32 {
        field!(self.inner.ops, __bindgen_anon_1.args[0])
    }

    /// The state a socket enters, in a state callback: `BPF_TCP_*`.
    #[inline(always)]
    pub fn new_state(&self) -> u32 {
        field!(self.inner.ops, __bindgen_anon_1.args[1])
    }

    /// `None` if it is not a full socket.
    #[inline(always)]
    fn sk(&self) -> Option<*mut bpf_sock> {
        let sk = field!(self.inner.ops, __bindgen_anon_2.sk);
        (!sk.is_null()).then_some(sk)
    }

    /// The socket, for its record. `None` if it is not a full socket.
    #[inline(always)]
    pub fn socket(&self) -> Option<*mut c_void> {
        self.sk().map(<*mut bpf_sock>::cast)
    }

    /// Whether the socket is a subflow of an MPTCP socket, if this kernel reports it.
    #[inline(always)]
    pub fn is_mptcp(&self) -> bool {
        mptcp_parent(field!(self.inner.ops, __bindgen_anon_2.sk)).is_some()
    }

    /// Whether the socket is of family `AF_INET6`.
    #[inline(always)]
    pub fn is_v6(&self) -> bool {
        field!(self.inner.ops, family) == AF_INET6
    }

    /// Whether the socket serves IPv6 alone (`IPV6_V6ONLY`).
    #[inline(always)]
    pub fn is_v6_only(&self) -> bool {
        let Some(sk) = self.sk() else {
            return false;
        };
        let bits: u8 = tcp_sock(sk).map_or(0, |tcp| load(tcp, &OFFSET_SOCK_V6ONLY));
        u32::from(bits) & MASK_SOCK_V6ONLY.load() != 0
    }

    /// Cookie of the socket's network namespace.
    #[inline(always)]
    pub fn netns(&self) -> u64 {
        netns(self.inner)
    }

    /// Cookie of the socket.
    #[inline(always)]
    pub fn cookie(&self) -> u64 {
        // SAFETY: the helper takes the program's own context.
        unsafe { bpf_get_socket_cookie(self.inner.as_ptr()) }
    }

    /// The process that created the socket.
    #[inline(always)]
    pub fn owner(&self) -> Owner {
        self.sk().map_or(Owner::UNKNOWN, owner::owner)
    }

    /// `SO_MARK` of the socket, 0 if it has none.
    #[inline(always)]
    pub fn mark(&self) -> u32 {
        self.sk().map_or(0, |sk| field!(sk, mark))
    }

    /// Whether the socket is bound to a device (SO_BINDTODEVICE) other than lo.
    #[inline(always)]
    pub fn is_bound_to_device(&self) -> bool {
        self.sk()
            .is_some_and(|sk| field!(sk, bound_dev_if) > LOOPBACK_IFINDEX)
    }

    /// The socket's own address.
    #[inline(always)]
    pub fn local(&self) -> Addr {
        addr_field!(self.inner.ops, local_ip4, local_ip6)
    }

    /// The socket's own port, host order.
    #[inline(always)]
    pub fn local_port(&self) -> u16 {
        field!(self.inner.ops, local_port) as u16
    }

    /// The peer's address.
    #[inline(always)]
    pub fn remote(&self) -> Addr {
        addr_field!(self.inner.ops, remote_ip4, remote_ip6)
    }

    /// The peer's port, host order. The context has it in network order in the upper half.
    #[inline(always)]
    pub fn remote_port(&self) -> u16 {
        u32::from_be(field!(self.inner.ops, remote_port)) as u16
    }

    /// Whether the socket has sent data already, with its SYN.
    #[inline(always)]
    pub fn has_sent(&self) -> bool {
        // The SYN counts as one.
        field!(self.inner.ops, bytes_acked) > 1
            || field!(self.inner.ops, snd_nxt) != field!(self.inner.ops, snd_una)
    }

    /// Enables the callback at every change of the socket's state; other enabled callbacks stay.
    #[inline(always)]
    pub fn enable_state_callback(&self) {
        let flags = field!(self.inner.ops, bpf_sock_ops_cb_flags) | BPF_SOCK_OPS_STATE_CB_FLAG;
        let _ = self.inner.set_cb_flags(flags as i32);
    }

    /// Disables it again, unless another program uses callbacks on this socket as well.
    #[inline(always)]
    pub fn disable_state_callback(&self) {
        if field!(self.inner.ops, bpf_sock_ops_cb_flags) == BPF_SOCK_OPS_STATE_CB_FLAG {
            let _ = self.inner.set_cb_flags(0);
        }
    }

    /// What has failed on the socket, as `SO_ERROR` would say: an errno, 0 if nothing has.
    #[inline(always)]
    pub fn error(&self) -> i32 {
        let tcp = self.sk().and_then(tcp_sock);
        tcp.map_or(0, |tcp| load(tcp, &OFFSET_SOCK_ERR))
    }
}
