//! The IP options of a socket.

use aya_ebpf::bindings::bpf_sock;

use super::{
    offsets,
    typed::{follow, load, tcp_sock},
};

offsets! {
    OFFSET_INET_PINET6,
    OFFSET_PINFO_OPT,
    OFFSET_TXOPT_SRCRT,
    OFFSET_INET_OPT,
    OFFSET_RCU_OPT,
    OFFSET_OPT_SRR,
}

/// Whether IPv4 packets of a socket carry a source route, set by IP_OPTIONS.
#[inline(always)]
pub fn has_source_route(sk: *mut bpf_sock) -> bool {
    let Some(tcp) = tcp_sock(sk) else {
        return false;
    };
    let options = follow(tcp, &OFFSET_INET_OPT);
    if options.is_null() {
        return false;
    }
    let options = options.wrapping_add(OFFSET_RCU_OPT.load() as usize);
    load::<u8>(options, &OFFSET_OPT_SRR) != 0
}

/// Whether the packets of an IPv6 socket carry a routing header, set by IPV6_RTHDR, IPV6_2292RTHDR or
/// IPV6_2292PKTOPTIONS.
#[inline(always)]
pub fn has_routing_header(sk: *mut bpf_sock) -> bool {
    let Some(tcp) = tcp_sock(sk) else {
        return false;
    };
    let options = follow(follow(tcp, &OFFSET_INET_PINET6), &OFFSET_PINFO_OPT);
    !options.is_null() && !follow(options, &OFFSET_TXOPT_SRCRT).is_null()
}
