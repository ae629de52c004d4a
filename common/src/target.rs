//! Where the packets of a redirected connection go.
//!
//! The target depends on the destination. A client can therefore have one port in connections to several
//! destinations, and as many connections as it could have without the redirect.
//!
//! Targets of [`DEDICATED`] name their destination: a row of the pod's says which it is, and its names do not change as
//! long as a socket has the target. Any other target may be shared by different destinations: which one was dialed is in the
//! connection's [`Handshake`](crate::conn::Handshake).
//!
//! The node's secret seed is part of the hash: nothing outside the kernel can work out the target of a destination. Packets for
//! targets are also refused where they do not come over lo, see [`is_target`].

use crate::addr::{Addr, Family};

/// First address and prefix length of the IPv4 targets that name their destination.
pub const DEDICATED: (Addr, u8) = (Addr::v4([127, 64, 0, 0]), 10);
/// Those of IPv6: the dummy prefix, which no host has and no router forwards (RFC 9780). The agent makes it local in the
/// pod.
pub const DEDICATED_V6: (Addr, u8) = (
    Addr::v6([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
    64,
);
/// Those of other IPv4 targets. No address of either is a broadcast address of 127.0.0.0/8.
pub const SHARED: (Addr, u8) = (Addr::v4([127, 128, 0, 0]), 10);
/// How many dedicated targets are tried for a destination.
pub const DEDICATED_ATTEMPTS: u32 = 3;

/// Whether an address is one of [`DEDICATED`] or [`DEDICATED_V6`].
#[inline(always)]
#[must_use]
pub const fn is_dedicated(addr: Addr) -> bool {
    is_dedicated_v6(addr) || is_within(DEDICATED, addr)
}

/// Whether an address is one of [`DEDICATED_V6`].
#[inline(always)]
#[must_use]
pub const fn is_dedicated_v6(addr: Addr) -> bool {
    let (first, words) = (DEDICATED_V6.0.to_v6_be(), addr.to_v6_be());
    (words[0] ^ first[0]) | (words[1] ^ first[1]) == 0
}

/// Whether an address is a target that no process dials by itself: packets for it come over lo only.
#[inline(always)]
#[must_use]
pub const fn is_target(addr: Addr) -> bool {
    is_dedicated(addr) || is_shared(addr)
}

/// Whether an address is one of [`SHARED`].
#[inline(always)]
#[must_use]
pub const fn is_shared(addr: Addr) -> bool {
    is_within(SHARED, addr)
}

#[inline(always)]
const fn is_within(range: (Addr, u8), addr: Addr) -> bool {
    let shift = 32 - range.1 as u32;
    let (first, addr_be) = (range.0.to_v4_be(), addr.to_v4_be());
    matches!(addr.family(), Family::V4)
        && u32::from_be(addr_be) >> shift == u32::from_be(first) >> shift
}

/// Ports below 1024.
const PRIVILEGED: u32 = 1023;

/// An address that the pod reaches over lo, and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The address.
    pub addr: Addr,
    /// The port, host order.
    pub port: u16,
}

impl Target {
    /// The capture port on 127.0.0.1 or ::1, as with iptables.
    #[inline(always)]
    #[must_use]
    pub const fn plain(family: Family, capture_port: u16) -> Self {
        Self {
            addr: Addr::loopback_of(family),
            port: capture_port,
        }
    }

    /// The target that names a destination, by one of [`DEDICATED_ATTEMPTS`] attempts. `seed` is the node's secret.
    #[inline(always)]
    #[must_use]
    pub const fn dedicated(
        (dialed, port): (Addr, u16),
        capture_port: u16,
        attempt: u32,
        seed: u64,
    ) -> Self {
        // An odd number: every attempt is another address.
        const STEP: u32 = 0x9e_3779;
        let hash = hash(dialed, port, seed);
        let low = (hash as u32).wrapping_add(attempt.wrapping_mul(STEP));
        let addr = match dialed.family() {
            Family::V4 => within(DEDICATED, low),
            Family::V6 => {
                let [first, second, ..] = DEDICATED_V6.0.to_v6_be();
                let high = (hash >> 32) as u32 | NOT_MAPPED;
                Addr::from_v6_be([first, second, high, low])
            }
        };
        Self {
            addr,
            port: capture_port,
        }
    }

    /// The target of a destination that has none of its own. For IPv4 it is the capture port on one of [`SHARED`]. IPv6 has
    /// only one loopback address, so there the port differs, and sk_lookup finds the listener. Client and
    /// target then have one address: their ports may not be equal, or the client would connect to itself.
    /// `bound_port` is the client's port, 0 if the kernel is to pick one. `seed` is the node's secret.
    #[inline(always)]
    #[must_use]
    pub const fn shared(
        (dialed, port): (Addr, u16),
        capture_port: u16,
        bound_port: u16,
        seed: u64,
    ) -> Self {
        let hash = hash(dialed, port, seed) as u32;
        match dialed.family() {
            Family::V4 => Self {
                addr: within(SHARED, hash),
                port: capture_port,
            },
            Family::V6 => Self {
                addr: Addr::LOOPBACK_V6,
                port: if bound_port == 0 {
                    // The kernel picks none of these: a range that net.ipv4.ip_local_port_range may not
                    // have unless a pod allows all its users to bind them.
                    (hash % PRIVILEGED) as u16 + 1
                } else {
                    let port = (hash >> 16) as u16;
                    if port == 0 || port == bound_port {
                        // 1, or 2 if that is the client's.
                        1 + (bound_port == 1) as u16
                    } else {
                        port
                    }
                },
            },
        }
    }
}

#[inline(always)]
const fn within(range: (Addr, u8), host: u32) -> Addr {
    let first = u32::from_be(range.0.to_v4_be());
    let mask = u32::MAX >> range.1;
    Addr::from_v4_be((first | host & mask).to_be())
}

/// A bit of the third word of IPv6 targets, network byte order: in IPv4 targets that word is `::ffff:0:0`'s, which lacks
/// it. The last two words of an address therefore differ for all targets.
const NOT_MAPPED: u32 = u32::from_ne_bytes([1, 0, 0, 0]);

/// Mixes a destination, so that both halves of the result depend on all of it. Destinations that differ in nothing but
/// the last half of their addresses never have the same one.
#[inline(always)]
const fn hash(dialed: Addr, port: u16, seed: u64) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let words = dialed.to_v6_be();
    let mut hash = (seed ^ ((words[0] as u64) << 32 | words[1] as u64)).wrapping_mul(MIX);
    hash = (hash ^ (hash >> 32) ^ ((words[2] as u64) << 32 | words[3] as u64)).wrapping_mul(MIX);
    hash = (hash ^ (hash >> 29) ^ port as u64).wrapping_mul(MIX);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests;
