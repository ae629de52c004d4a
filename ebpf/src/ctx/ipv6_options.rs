//! The IPv6 options of a socket.

use aya_ebpf::{Global, bindings::bpf_sock};

use super::probe::{address, pointer};

/// Offset of `pinet6` in `struct inet_sock`; all of them are set by the loader from the kernel's BTF.
#[unsafe(no_mangle)]
static OFFSET_INET_PINET6: Global<u32> = Global::new(0);
/// Offset of `opt` in `struct ipv6_pinfo`.
#[unsafe(no_mangle)]
static OFFSET_PINFO_OPT: Global<u32> = Global::new(0);
/// Offset of `srcrt` in `struct ipv6_txoptions`.
#[unsafe(no_mangle)]
static OFFSET_TXOPT_SRCRT: Global<u32> = Global::new(0);

/// Whether the packets of an IPv6 socket carry a routing header, set by IPV6_RTHDR, IPV6_2292RTHDR or
/// IPV6_2292PKTOPTIONS.
#[inline(always)]
pub fn has_routing_header(sk: *mut bpf_sock) -> bool {
    header(sk).is_some()
}

#[inline(always)]
fn header(sk: *mut bpf_sock) -> Option<u64> {
    let inet6 = pointer(address(sk)?, &OFFSET_INET_PINET6)?;
    let options = pointer(inet6, &OFFSET_PINFO_OPT)?;
    pointer(options, &OFFSET_TXOPT_SRCRT)
}
