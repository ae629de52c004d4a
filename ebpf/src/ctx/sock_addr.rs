//! `struct bpf_sock_addr`: connect, getpeername and getsockname; sendmsg and recvmsg of UDP.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext as _, Global,
    bindings::bpf_sock,
    helpers::generated::{bpf_get_socket_cookie, bpf_set_retval, bpf_setsockopt},
    programs::SockAddrContext,
};
use sidetrack_common::{
    addr::{Addr, Family},
    decide::Owner,
};

use super::{
    IPPROTO_MPTCP, IPPROTO_TCP, IPPROTO_UDP, addr_field_of, field, interface, ip_options,
    mptcp_parent, netns, number, opaque, owner, set_addr_field_of, set_field,
};

/// Whether the kernel has bpf_set_retval, which came with Linux 5.18.
#[unsafe(no_mangle)]
static CAN_SET_ERRNO: Global<u8> = Global::new(0);

/// A socket address call; `V6` is the family of the attach point, which is the socket's.
pub struct SockAddr<'a, const V6: bool> {
    /// aya's context, for logging.
    pub inner: &'a SockAddrContext,
}

impl<const V6: bool> SockAddr<'_, V6> {
    #[inline(always)]
    fn sk(&self) -> *mut bpf_sock {
        field!(self.inner.sock_addr, __bindgen_anon_1.sk)
    }

    /// The socket, for its record.
    #[inline(always)]
    pub fn socket(&self) -> *mut c_void {
        self.sk().cast()
    }

    /// Whether this is a TCP socket (the subflows of an MPTCP socket are).
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        field!(self.inner.sock_addr, protocol) == IPPROTO_TCP
    }

    /// Whether this is a UDP socket.
    #[inline(always)]
    pub fn is_udp(&self) -> bool {
        field!(self.inner.sock_addr, protocol) == IPPROTO_UDP
    }

    /// Whether this is an MPTCP socket, the application's side of its subflows.
    #[inline(always)]
    pub fn is_mptcp(&self) -> bool {
        field!(self.inner.sock_addr, protocol) == IPPROTO_MPTCP
    }

    /// The MPTCP socket, if this one is a subflow of it.
    #[inline(always)]
    pub fn mptcp_parent(&self) -> Option<*mut c_void> {
        mptcp_parent(self.sk())
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
        owner::owner(self.sk())
    }

    /// The process that created the UDP socket.
    #[inline(always)]
    pub fn datagram_owner(&self) -> Owner {
        owner::of_datagram(self.sk())
    }

    /// The address the socket is bound to.
    #[inline(always)]
    pub fn source(&self) -> Addr {
        let sk = self.sk();
        addr_field_of!(V6, sk, src_ip4, src_ip6)
    }

    /// The port that the socket is bound to, host order; 0 if it is not.
    #[inline(always)]
    pub fn bound_port(&self) -> u16 {
        field!(self.sk(), src_port) as u16
    }

    /// The address of the socket's peer, unspecified if it has none.
    #[inline(always)]
    pub fn peer(&self) -> Addr {
        let sk = self.sk();
        addr_field_of!(V6, sk, dst_ip4, dst_ip6)
    }

    /// The port of the socket's peer, host order; 0 if it has none.
    #[inline(always)]
    pub fn peer_port(&self) -> u16 {
        u16::from_be(field!(self.sk(), dst_port))
    }

    /// The interface index of SO_BINDTODEVICE, 0 if not set.
    #[inline(always)]
    pub fn bound_device(&self) -> u32 {
        field!(self.sk(), bound_dev_if)
    }

    /// Whether the socket names the interface that its packets of a family leave by, other than by SO_BINDTODEVICE, or
    /// `message`, the one that is being sent, does. lo is none. What cannot be read counts as one.
    #[inline(always)]
    pub fn names_interface(&self, family: Family, message: bool) -> bool {
        let socket = number::of_pointer(self.socket());
        let by_socket = socket.and_then(|socket| interface::of_socket(socket, family));
        let by_message = if message {
            let ctx = number::of_pointer(self.inner.as_ptr());
            ctx.and_then(interface::of_message::<V6>)
        } else {
            Some(false)
        };
        !matches!((by_socket, by_message), (Some(false), Some(false)))
    }

    /// The socket's SO_MARK.
    #[inline(always)]
    pub fn mark(&self) -> u32 {
        field!(self.sk(), mark)
    }

    /// Takes the binding of SO_BINDTODEVICE off the socket. Fails for callers without CAP_NET_RAW
    /// (`sock_bindtoindex_locked` in net/core/sock.c).
    #[inline(always)]
    pub fn unbind_device(&self) -> Result<(), ()> {
        self.bind_device(*b"\0\0\0\0")
    }

    /// Gives the socket the mark by which its packets are routed, and binds it to lo if they are to leave by that only.
    /// The latter fails for callers without CAP_NET_RAW if it is bound to a device already.
    #[inline(always)]
    pub fn keep_in_pod(&self, mark: u32, by_lo: bool) -> Result<(), ()> {
        const SO_MARK: i32 = 36;
        if self.mark() != mark {
            self.set_option(SO_MARK, mark.to_ne_bytes())?;
        }
        if by_lo {
            self.bind_device(*b"lo\0\0")?;
        }
        Ok(())
    }

    #[inline(always)]
    fn bind_device(&self, name: [u8; 4]) -> Result<(), ()> {
        const SO_BINDTODEVICE: i32 = 25;
        self.set_option(SO_BINDTODEVICE, name)
    }

    #[inline(always)]
    fn set_option(&self, option: i32, mut value: [u8; 4]) -> Result<(), ()> {
        const SOL_SOCKET: i32 = 1;
        // SAFETY: the program's own context and a local of the given length.
        let failed = unsafe {
            bpf_setsockopt(
                self.inner.as_ptr(),
                SOL_SOCKET,
                option,
                value.as_mut_ptr().cast(),
                value.len() as i32,
            )
        };
        if failed == 0 { Ok(()) } else { Err(()) }
    }

    /// Whether packets to a destination of this family carry a routing header (IPV6_RTHDR and its kin) or a source
    /// route (IP_OPTIONS), which leads them to another host first.
    #[inline(always)]
    pub fn has_routing_header(&self, family: Family) -> bool {
        match family {
            Family::V4 => ip_options::has_source_route(self.sk()),
            Family::V6 => V6 && ip_options::has_routing_header(self.sk()),
        }
    }

    /// The address in the call.
    #[inline(always)]
    pub fn address(&self) -> Addr {
        let ctx = self.inner.sock_addr;
        addr_field_of!(V6, ctx, user_ip4, user_ip6)
    }

    /// The port in the call, host order.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        u16::from_be(field!(self.inner.sock_addr, user_port) as u16)
    }

    /// Replaces address and port of the call.
    #[inline(always)]
    pub fn set_address(&self, addr: Addr, port: u16) {
        let ctx = self.inner.sock_addr;
        set_addr_field_of!(V6, ctx, addr, user_ip4, user_ip6);
        set_field!(ctx, u32::from(port.to_be()), user_port);
    }

    /// The source address of a message: what the socket is bound to, or what the call asks for.
    #[inline(always)]
    pub fn message_source(&self) -> Addr {
        let ctx = self.inner.sock_addr;
        addr_field_of!(V6, ctx, msg_src_ip4, msg_src_ip6)
    }

    /// Replaces the source address of a message.
    #[inline(always)]
    pub fn set_message_source(&self, addr: Addr) {
        // LLVM would keep a field's address for several writes.
        let ctx = opaque(self.inner.sock_addr);
        set_addr_field_of!(V6, ctx, addr, msg_src_ip4, msg_src_ip6);
    }

    /// The errno of the call when the program denies it, instead of the default EPERM.
    #[inline(always)]
    pub fn fail_with(&self, errno: i32) {
        // The verifier has the values of read-only globals and skips what is never reached, so this
        // loads on kernels without the helper.
        if CAN_SET_ERRNO.load() != 0 {
            // SAFETY: takes a number.
            unsafe { bpf_set_retval(-errno) };
        }
    }
}
