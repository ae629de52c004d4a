//! The interface that packets of a UDP socket are to leave by.
//!
//! SO_BINDTODEVICE is a field of the socket's context. The rest has none, and there is no typed pointer for UDP: the
//! kernel's memory is read by address. `None` is what cannot be read.

use aya_ebpf::Global;
use sidetrack_common::{addr::Family, pod::LOOPBACK_IFINDEX};

use super::{ip_options::OFFSET_INET_PINET6, number::load, offsets};

offsets! {
    OFFSET_INET_UC_INDEX,
    OFFSET_PINFO_UCAST_OIF,
    OFFSET_PINFO_PKTINFO,
    OFFSET_PKTINFO_IFINDEX,
    OFFSET_SOCK_ADDR_T_CTX,
    OFFSET_IPCM_ADDR,
    OFFSET_IPCM_OIF,
    OFFSET_FLOWI6_SADDR,
    OFFSET_FLOWI_OIF,
}

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
