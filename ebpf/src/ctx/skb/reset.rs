//! A SYN becomes the reset that answers it, and goes back the way it came.
//!
//! Its TCP options stay: with its length the checksum's pseudo header stays the same, also where a device is still to
//! complete the checksum. Addresses and ports that change places leave the sum as it is. A packet with IP options or
//! extension headers is not answered: they would go back with it.

use aya_ebpf::helpers::{bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_redirect};

use super::{ETH_HLEN, ETH_P_IP, Packet};
use crate::ctx::field;

/// Bytes of an IPv4 header without options.
const IPV4_HLEN: u32 = 20;
/// Bytes of an IPv6 header.
const IPV6_HLEN: u32 = 40;
/// `IPDEFTTL` of linux/ip.h.
const TTL: u8 = 64;
/// Flags of a TCP header.
const FIN: u8 = 0x01;
const RST: u8 = 0x04;
const RST_ACK: u8 = 0x14;

impl Packet {
    /// Answers a SYN with a reset, where TCP begins so many bytes after the IP header does. Returns what the program
    /// is to return; `None` if it cannot.
    #[inline(always)]
    pub fn reset(&self, offset: u32) -> Option<i32> {
        let is_v4 = self.protocol() == ETH_P_IP;
        if offset != if is_v4 { IPV4_HLEN } else { IPV6_HLEN } {
            return None;
        }
        let ip = self.ip_header()?;
        let tcp = ip + offset;
        let [length, flags, window @ ..]: [u8; 4] = self.load(tcp + 12)?;
        // No SYN that a kernel sends has these.
        if flags & (RST | FIN) != 0 {
            return None;
        }
        if ip == ETH_HLEN {
            self.swap::<6>(0)?;
        }
        if is_v4 {
            let [ttl, protocol]: [u8; 2] = self.load(ip + 8)?;
            let words = [[ttl, protocol], [TTL, protocol]].map(u16::from_ne_bytes);
            self.replace_l3(ip + 10, words)?;
            self.store(ip + 8, &[TTL])?;
            self.swap::<4>(ip + 12)?;
        } else {
            self.store(ip + 7, &[TTL])?;
            self.swap::<16>(ip + 8)?;
        }
        self.swap::<2>(tcp)?;
        let sequence: [u8; 4] = self.load(tcp + 4)?;
        let acknowledged = u32::from_be_bytes(sequence).wrapping_add(1).to_be_bytes();
        self.replace_l4(tcp, 4, [0; 4])?;
        self.replace_l4(tcp, 8, acknowledged)?;
        self.replace_l4(tcp, 12, [length, RST_ACK, window[0], window[1]])?;
        let interface = field!(self.skb, ifindex);
        // SAFETY: takes numbers only.
        Some(unsafe { bpf_redirect(interface, 0) } as i32)
    }

    /// Bytes before the IP header, if that is an Ethernet header or nothing. No field has them, so the header is looked
    /// for.
    #[inline(always)]
    fn ip_header(&self) -> Option<u32> {
        let header: [u8; 20] = self.bytes(0)?;
        [ETH_HLEN, 0].into_iter().find(|at| {
            self.load::<20>(*at)
                .is_some_and(|found| words(&found) == words(&header))
        })
    }

    /// Two fields of `N` bytes, one behind the other, change places.
    #[inline(always)]
    fn swap<const N: usize>(&self, at: u32) -> Option<()> {
        let (first, second): ([u8; N], [u8; N]) = (self.load(at)?, self.load(at + N as u32)?);
        self.store(at, &second)?;
        self.store(at + N as u32, &first)
    }

    /// Writes a field of the TCP header, and what that changes in its checksum.
    #[inline(always)]
    fn replace_l4(&self, tcp: u32, at: u32, new: [u8; 4]) -> Option<()> {
        let old = u32::from_ne_bytes(self.load(tcp + at)?);
        let (from, to) = (old.into(), u32::from_ne_bytes(new).into());
        // SAFETY: the program's own context, and numbers.
        let failed = unsafe { bpf_l4_csum_replace(self.skb.cast(), tcp + 16, from, to, 4) };
        (failed == 0).then_some(())?;
        self.store(tcp + at, &new)
    }

    /// What a change of a word from one value to another changes in the checksum of an IPv4 header.
    #[inline(always)]
    fn replace_l3(&self, checksum: u32, [from, to]: [u16; 2]) -> Option<()> {
        // SAFETY: the program's own context, and numbers.
        let failed =
            unsafe { bpf_l3_csum_replace(self.skb.cast(), checksum, from.into(), to.into(), 2) };
        (failed == 0).then_some(())
    }
}

/// An IPv4 header, or the first half of one of IPv6. Comparing arrays would call `memcmp`, which BPF does not have.
#[inline(always)]
fn words(header: &[u8; 20]) -> (u64, u64, u32) {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    (word(0), word(8), super::word_at(header, 16))
}
