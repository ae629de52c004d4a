//! `struct bpf_sk_lookup`: which listener gets an arriving connection.

use aya_ebpf::{Global, programs::SkLookupContext};
use sidetrack_common::{addr::Addr, conn::ListenerKey};

use super::{IPPROTO_TCP, addr_field, field};
use crate::maps;

/// Cookie of the network namespace this instance of the program is attached to. sk_lookup programs
/// cannot ask for it, so every pod gets an instance of its own with this set by the loader.
#[unsafe(no_mangle)]
static POD_NETNS: Global<u64> = Global::new(0);

/// Whether the kernel says on which interface a packet arrives, as it does since Linux 5.17.
#[unsafe(no_mangle)]
static CAN_SEE_IFACE: Global<u8> = Global::new(0);

/// A lookup for a packet that belongs to no established connection.
pub struct SkLookup<'a> {
    /// aya's context.
    pub inner: &'a SkLookupContext,
}

impl SkLookup<'_> {
    /// Cookie of the network namespace that this instance is for.
    #[inline(always)]
    pub fn own_netns(&self) -> u64 {
        POD_NETNS.load()
    }

    /// Cookie of the network namespace whose instance continued here.
    #[inline(always)]
    pub fn netns(&self) -> u64 {
        maps::arrival_netns()
    }

    /// Whether the packet is TCP.
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        field!(self.inner.lookup, protocol) == IPPROTO_TCP
    }

    /// The sender's address.
    #[inline(always)]
    pub fn source(&self) -> Addr {
        addr_field!(self.inner.lookup, remote_ip4, remote_ip6)
    }

    /// The address it was sent to.
    #[inline(always)]
    pub fn destination(&self) -> Addr {
        addr_field!(self.inner.lookup, local_ip4, local_ip6)
    }

    /// The port it was sent to, host order.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        field!(self.inner.lookup, local_port) as u16
    }

    /// The interface it arrived on; for traffic to an own address the one that holds it, not lo. None
    /// where the kernel does not say: pods with rules for interfaces are not enrolled there.
    #[inline(always)]
    pub fn iface(&self) -> Option<u32> {
        // The verifier does not look at what a read-only global rules out.
        if CAN_SEE_IFACE.load() == 0 {
            return None;
        }
        Some(field!(self.inner.lookup, ingress_ifindex))
    }

    /// Hands the connection to a listener. Fails if the slot is empty or its socket does not take
    /// this family. The kernel then picks within the socket's reuse_port group by itself.
    #[inline(always)]
    pub fn assign(&self, key: &ListenerKey) -> Result<(), ()> {
        maps::assign_listener(self.inner.lookup, key)
    }
}
