//! A UDP datagram that lo receives goes to another address.

use aya_ebpf::helpers::{bpf_csum_diff, bpf_l3_csum_replace, bpf_l4_csum_replace};

use super::{ETH_HLEN, Packet};

/// `BPF_F_PSEUDO_HDR`: the change is one of the pseudo header, which the sum covers also where a device is to complete it.
const PSEUDO_HEADER: u64 = 1 << 4;
/// `BPF_F_MARK_MANGLED_0`: a datagram without a checksum stays without.
const KEEP_NONE: u64 = 1 << 5;

/// Where an IPv4 header has its checksum.
const IPV4_CHECKSUM: u32 = 10;
/// Where UDP has its checksum.
const UDP_CHECKSUM: u32 = 6;

impl Packet {
    /// Makes the destination of an IPv4 datagram with these addresses its source, and another address its destination. UDP
    /// begins so many bytes after the IP header. `None` if it cannot.
    #[inline(always)]
    pub fn redirect_v4(&self, udp: u32, from: [[u8; 4]; 2], to: [u8; 4]) -> Option<()> {
        let change = self.redirect(12, from, to)?;
        let at = ETH_HLEN + IPV4_CHECKSUM;
        // SAFETY: the program's own context, and numbers.
        let failed = unsafe { bpf_l3_csum_replace(self.skb.cast(), at, 0, change, 0) };
        (failed == 0).then_some(())?;
        self.change_udp_checksum(udp, change)
    }

    /// The same of IPv6.
    #[inline(always)]
    pub fn redirect_v6(&self, udp: u32, from: [[u8; 16]; 2], to: [u8; 16]) -> Option<()> {
        let change = self.redirect(8, from, to)?;
        self.change_udp_checksum(udp, change)
    }

    /// Where the addresses begin in the IP header is `at`. Answers what changes in checksums.
    #[inline(always)]
    fn redirect<const N: usize>(
        &self,
        at: u32,
        [mut source, target]: [[u8; N]; 2],
        mut to: [u8; N],
    ) -> Option<u64> {
        self.store(ETH_HLEN + at, [target, to].as_flattened())?;
        // SAFETY: so many bytes of the stack.
        let change = unsafe {
            bpf_csum_diff(
                source.as_mut_ptr().cast(),
                N as u32,
                to.as_mut_ptr().cast(),
                N as u32,
                0,
            )
        };
        (change >= 0).then_some(change as u64)
    }

    #[inline(always)]
    fn change_udp_checksum(&self, udp: u32, change: u64) -> Option<()> {
        let (at, flags) = (ETH_HLEN + udp + UDP_CHECKSUM, PSEUDO_HEADER | KEEP_NONE);
        // SAFETY: the program's own context, and numbers.
        let failed = unsafe { bpf_l4_csum_replace(self.skb.cast(), at, 0, change, flags) };
        (failed == 0).then_some(())
    }
}
