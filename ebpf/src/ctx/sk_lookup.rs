//! `struct bpf_sk_lookup`: the choice of a listener for an inbound connection.

use aya_ebpf::{Global, programs::SkLookupContext};
use sidetrack_common::{addr::Addr, target::Target};

use super::{IPPROTO_TCP, addr_field, field, opaque};

/// Cookie of the network namespace this instance of the program is attached to. sk_lookup programs
/// have no helper for it, so the loader sets it and loads an instance for every pod. Not 0, because the compiler gives
/// constants with equal values one place.
#[unsafe(no_mangle)]
static POD_NETNS: Global<u64> = Global::new(u64::MAX);

/// Whether the context has the ingress interface of the packet, as it does since Linux 5.17.
#[unsafe(no_mangle)]
static CAN_SEE_IFACE: Global<u8> = Global::new(0);

/// A lookup for a packet that belongs to no established connection.
pub struct SkLookup<'a> {
    /// aya's context.
    pub inner: &'a SkLookupContext,
}

/// Where a packet comes from and goes to. Ports in host order.
pub struct Tuple {
    /// The sender's address.
    pub source: Addr,
    /// The address it was sent to.
    pub destination: Addr,
    /// The port it was sent from.
    pub source_port: u16,
    /// The port it was sent to.
    pub port: u16,
}

impl SkLookup<'_> {
    /// Cookie of the network namespace this instance is attached to.
    #[inline(always)]
    pub fn own_netns(&self) -> u64 {
        POD_NETNS.load()
    }

    /// Whether the packet is TCP.
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        field!(self.inner.lookup, protocol) == IPPROTO_TCP
    }

    /// Addresses and ports of the packet.
    #[inline(always)]
    pub fn tuple(&self) -> Tuple {
        Tuple {
            source: addr_field!(self.inner.lookup, remote_ip4, remote_ip6),
            destination: addr_field!(self.inner.lookup, local_ip4, local_ip6),
            source_port: u16::from_be(field!(self.inner.lookup, remote_port)),
            port: field!(self.inner.lookup, local_port) as u16,
        }
    }

    /// Where the packet was sent from.
    #[inline(always)]
    pub fn source(&self) -> Target {
        // LLVM would keep a field's address for several reads.
        let lookup = opaque(self.inner.lookup);
        Target {
            addr: addr_field!(lookup, remote_ip4, remote_ip6),
            port: u16::from_be(field!(lookup, remote_port)),
        }
    }

    /// Where the packet was sent to.
    #[inline(always)]
    pub fn target(&self) -> Target {
        // LLVM would keep a field's address for several reads.
        let lookup = opaque(self.inner.lookup);
        Target {
            addr: addr_field!(lookup, local_ip4, local_ip6),
            port: field!(lookup, local_port) as u16,
        }
    }

    /// The ingress interface. For traffic to an address of the pod it is the interface that holds the
    /// address, not lo. None on kernels without that field, where pods with rules for interfaces are
    /// not enrolled.
    #[inline(always)]
    pub fn iface(&self) -> Option<u32> {
        // The verifier skips the branches that a read-only global rules out.
        if CAN_SEE_IFACE.load() == 0 {
            return None;
        }
        Some(field!(self.inner.lookup, ingress_ifindex))
    }
}
