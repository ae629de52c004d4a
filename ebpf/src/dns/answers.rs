//! recvmsg of UDP sockets: the sidecar's answer comes from the server that was asked.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use sidetrack_common::{
    conn::{DestinationKey, Role},
    target::{Target, is_dedicated},
};
use sidetrack_ebpf::ctx::sock_addr::SockAddr;

use crate::{ALLOW, maps};

/// A datagram that an IPv4 socket receives.
#[cgroup_sock_addr(recvmsg4)]
pub fn st_dns_recvmsg4(ctx: SockAddrContext) -> i32 {
    receive(&SockAddr::<false> { inner: &ctx })
}

/// A datagram that an IPv6 socket receives, also from IPv4.
#[cgroup_sock_addr(recvmsg6)]
pub fn st_dns_recvmsg6(ctx: SockAddrContext) -> i32 {
    receive(&SockAddr::<true> { inner: &ctx })
}

#[inline(always)]
fn receive<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    let addr = ctx.address();
    let is_dedicated = is_dedicated(addr);
    if !is_dedicated && !addr.is_loopback() {
        return ALLOW;
    }
    let port = ctx.port();
    if is_dedicated {
        let key = DestinationKey::new(ctx.netns(), Target { addr, port });
        if let Some(row) = maps::destination(&key) {
            ctx.set_address(row.dialed, row.dialed_port);
        }
        return ALLOW;
    }
    if let Some(record) = maps::record(ctx.socket())
        && record.role == Role::Dialed as u16
        && record.target_port == port
    {
        ctx.set_address(record.addr, record.port);
    }
    ALLOW
}
