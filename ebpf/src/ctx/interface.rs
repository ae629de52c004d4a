//! The interface that packets of a UDP socket are to leave by.
//!
//! SO_BINDTODEVICE is a field of the socket's context. The rest has none, and there is no typed pointer for UDP: the
//! kernel's memory is read by address. `None` is what cannot be read.

use aya_ebpf::Global;
use sidetrack_common::{addr::Family, pod::LOOPBACK_IFINDEX};

use super::{ip_options::OFFSET_INET_PINET6, number::load};

/// Offset of `uc_index` in `struct inet_sock`, which IP_UNICAST_IF sets; all of them are set by the loader from the
/// kernel's BTF.
#[unsafe(no_mangle)]
static OFFSET_INET_UC_INDEX: Global<u32> = Global::new(0);
/// Offset of `ucast_oif` in `struct ipv6_pinfo`, which IPV6_UNICAST_IF sets.
#[unsafe(no_mangle)]
static OFFSET_PINFO_UCAST_OIF: Global<u32> = Global::new(0);
/// Offset of `sticky_pktinfo` in `struct ipv6_pinfo`, which IPV6_PKTINFO sets.
#[unsafe(no_mangle)]
static OFFSET_PINFO_PKTINFO: Global<u32> = Global::new(0);
/// Offset of `ipi6_ifindex` in `struct in6_pktinfo`.
#[unsafe(no_mangle)]
static OFFSET_PKTINFO_IFINDEX: Global<u32> = Global::new(0);

/// Offset of `t_ctx` in `struct bpf_sock_addr_kern`, which leads to the source of a message.
#[unsafe(no_mangle)]
static OFFSET_SOCK_ADDR_T_CTX: Global<u32> = Global::new(0);
/// Offset of `addr` in `struct ipcm_cookie`, the source of an IPv4 message.
#[unsafe(no_mangle)]
static OFFSET_IPCM_ADDR: Global<u32> = Global::new(0);
/// Offset of `oif` in the same.
#[unsafe(no_mangle)]
static OFFSET_IPCM_OIF: Global<u32> = Global::new(0);
/// Offset of `saddr` in `struct flowi6`, the source of an IPv6 message.
#[unsafe(no_mangle)]
static OFFSET_FLOWI6_SADDR: Global<u32> = Global::new(0);
/// Offset of `flowic_oif` in `struct flowi_common`, with which the other begins.
#[unsafe(no_mangle)]
static OFFSET_FLOWI_OIF: Global<u32> = Global::new(0);

/// Whether a `struct sock` names one for packets of a family. IPv6 sockets may send either.
#[inline(always)]
pub fn of_socket(socket: usize, family: Family) -> Option<bool> {
    match family {
        Family::V4 => names_one(at(socket, &OFFSET_INET_UC_INDEX)),
        Family::V6 => {
            let info: usize = load(at(socket, &OFFSET_INET_PINET6))?;
            let sticky = at(at(info, &OFFSET_PINFO_PKTINFO), &OFFSET_PKTINFO_IFINDEX);
            Some(names_one(at(info, &OFFSET_PINFO_UCAST_OIF))? || names_one(sticky)?)
        }
    }
}

/// Whether a message does, by its `struct bpf_sock_addr_kern`.
#[inline(always)]
pub fn of_message<const V6: bool>(context: usize) -> Option<bool> {
    let source: usize = load(at(context, &OFFSET_SOCK_ADDR_T_CTX))?;
    let (from, to) = if V6 {
        (&OFFSET_FLOWI6_SADDR, &OFFSET_FLOWI_OIF)
    } else {
        (&OFFSET_IPCM_ADDR, &OFFSET_IPCM_OIF)
    };
    names_one(at(source - from.load() as usize, to))
}

#[inline(always)]
fn at(base: usize, offset: &Global<u32>) -> usize {
    base + offset.load() as usize
}

/// Whether an index is that of an interface other than lo.
#[inline(always)]
fn names_one(at: usize) -> Option<bool> {
    let index: u32 = load(at)?;
    Some(index != 0 && index != LOOPBACK_IFINDEX)
}
