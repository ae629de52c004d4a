//! `struct sk_msg_md`: a message that an accelerated socket sends.

use aya_ebpf::programs::SkMsgContext;
use sidetrack_common::flow::FlowKey;

use super::{
    addr_field, field, netns, offsets,
    typed::{Typed, load, tcp_sock},
};

offsets! {
    OFFSET_SOCK_BACKLOG,
    OFFSET_ICSK_ULP,
    OFFSET_TCP_WRITE_SEQ,
    OFFSET_TCP_COPIED_SEQ,
}

/// A message that is being sent.
pub struct SkMsg<'a> {
    /// aya's context.
    pub inner: &'a SkMsgContext,
}

/// The TCP side of the socket that sends.
pub struct TcpState(Typed);

impl SkMsg<'_> {
    /// The connection as the sender sees it.
    #[inline(always)]
    pub fn key(&self) -> FlowKey {
        let local = addr_field!(self.inner.msg, local_ip4, local_ip6);
        let remote = addr_field!(self.inner.msg, remote_ip4, remote_ip6);
        FlowKey {
            netns: netns(self.inner),
            local,
            remote,
            local_port: field!(self.inner.msg, local_port) as u16,
            // The context has it in network order in the upper half.
            remote_port: u32::from_be(field!(self.inner.msg, remote_port)) as u16,
            pad: 0,
        }
    }

    /// Bytes of the message.
    #[inline(always)]
    pub fn size(&self) -> u32 {
        field!(self.inner.msg, size)
    }

    /// The TCP side; `None` if the socket is none of TCP.
    #[inline(always)]
    pub fn tcp(&self) -> Option<TcpState> {
        let sk = field!(self.inner.msg, __bindgen_anon_3.sk);
        if sk.is_null() {
            return None;
        }
        tcp_sock(sk).map(TcpState)
    }
}

impl TcpState {
    /// Bytes in the socket's own receive queues.
    #[inline(always)]
    pub fn unread(&self) -> u32 {
        load(self.0, &OFFSET_SOCK_BACKLOG)
    }

    /// Whether another protocol is between the application and TCP, such as TLS of the kernel.
    #[inline(always)]
    pub fn has_upper_protocol(&self) -> bool {
        load::<u64>(self.0, &OFFSET_ICSK_ULP) != 0
    }

    /// The sequence number of the next byte.
    #[inline(always)]
    pub fn write_seq(&self) -> u32 {
        load(self.0, &OFFSET_TCP_WRITE_SEQ)
    }

    /// How far the application has read, as a sequence number.
    #[inline(always)]
    pub fn copied_seq(&self) -> u32 {
        load(self.0, &OFFSET_TCP_COPIED_SEQ)
    }
}
