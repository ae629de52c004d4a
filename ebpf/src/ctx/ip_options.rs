//! The IP options of a socket.

use aya_ebpf::{Global, bindings::bpf_sock};

use super::typed::{follow, load, tcp_sock};

/// Offset of `pinet6` in `struct inet_sock`; all of them are set by the loader from the kernel's BTF.
#[unsafe(no_mangle)]
pub static OFFSET_INET_PINET6: Global<u32> = Global::new(0);
/// Offset of `opt` in `struct ipv6_pinfo`.
#[unsafe(no_mangle)]
static OFFSET_PINFO_OPT: Global<u32> = Global::new(0);
/// Offset of `srcrt` in `struct ipv6_txoptions`.
#[unsafe(no_mangle)]
static OFFSET_TXOPT_SRCRT: Global<u32> = Global::new(0);

/// Offset of `inet_opt` in `struct inet_sock`.
#[unsafe(no_mangle)]
static OFFSET_INET_OPT: Global<u32> = Global::new(0);
/// Offset of `opt` in `struct ip_options_rcu`.
#[unsafe(no_mangle)]
static OFFSET_RCU_OPT: Global<u32> = Global::new(0);
/// Offset of `srr` in `struct ip_options`.
#[unsafe(no_mangle)]
static OFFSET_OPT_SRR: Global<u32> = Global::new(0);

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
