//! IP addresses in the one form all maps use.
//!
//! Invariant: an [`Addr`] holds 16 bytes in network byte order; IPv4 is kept v4-mapped
//! (`::ffff:a.b.c.d`), so that one key layout serves both families. Ports are plain `u16` in
//! **host** order wherever they are stored, so that `bpftool map dump` prints 15001 and not 39226;
//! the conversion happens in the programs' context views and nowhere else.
//!
//! Words are compared all at once, not one after the other: every branch multiplies the paths that
//! the kernel's verifier walks. With a branch for each word it walked nine times as many.

use core::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// Address family of a connection as the rules see it: an `AF_INET6` socket that dials
/// `::ffff:a.b.c.d` is [`Family::V4`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Family {
    /// The IPv4 rules apply.
    V4 = 4,
    /// The IPv6 rules apply.
    V6 = 6,
}

/// An IPv4 or IPv6 address: 16 bytes, network byte order, IPv4 v4-mapped.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(4))]
pub struct Addr {
    octets: [u8; 16],
}

impl Addr {
    /// `::`, which also stands for "not bound" as a source.
    pub const UNSPECIFIED: Self = Self { octets: [0; 16] };
    /// `127.0.0.1`, where redirected IPv4 connections go.
    pub const LOOPBACK_V4: Self = Self::v4([127, 0, 0, 1]);
    /// `::1`, where redirected IPv6 connections go.
    pub const LOOPBACK_V6: Self = Self::from_last(1);
    /// `127.0.0.6`, the source the sidecar uses toward the app (Istio 1.3 and later).
    pub const SELF_V4: Self = Self::v4([127, 0, 0, 6]);
    /// `::6`, the sidecar's source for IPv6.
    pub const SELF_V6: Self = Self::from_last(6);

    const fn from_last(last: u8) -> Self {
        let mut octets = [0; 16];
        octets[15] = last;
        Self { octets }
    }

    /// From the four octets of an IPv4 address, network byte order.
    #[inline(always)]
    #[must_use]
    pub const fn v4(o: [u8; 4]) -> Self {
        Self {
            octets: [
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, o[0], o[1], o[2], o[3],
            ],
        }
    }

    /// A user, a group or a port in the place of an IPv4 address: ranges of numbers are kept as those of addresses.
    #[inline(always)]
    #[must_use]
    pub const fn number(number: u32) -> Self {
        Self::from_v4_be(number.to_be())
    }

    /// From the sixteen octets of an IPv6 address, network byte order. A v4-mapped address counts as IPv4.
    #[inline(always)]
    #[must_use]
    pub const fn v6(octets: [u8; 16]) -> Self {
        Self { octets }
    }

    /// From an IPv4 address as the kernel's context structs hold it: a `u32` in network byte order.
    #[inline(always)]
    #[must_use]
    pub const fn from_v4_be(be: u32) -> Self {
        Self::from_v6_be([0, 0, MAPPED_WORD, be])
    }

    /// From an IPv6 address as the kernel's context structs hold it: four words in network order.
    #[inline(always)]
    #[must_use]
    pub const fn from_v6_be(be: [u32; 4]) -> Self {
        // SAFETY: both are sixteen bytes without padding or invalid values.
        #[expect(unsafe_code, reason = "byte by byte it does not fit BPF's stack")]
        let octets = unsafe { core::mem::transmute::<[u32; 4], [u8; 16]>(be) };
        Self { octets }
    }

    /// The address of a socket or packet of a family, `AF_INET` (2) or `AF_INET6` (10), from the two fields that a context
    /// has for it, in network byte order. There is no branch: the verifier would walk all that follows once for each family
    /// of each address.
    #[inline(always)]
    #[must_use]
    pub const fn of_family(family: u32, v4: u32, v6: [u32; 4]) -> Self {
        // The families differ in the fourth bit: all bits of it, or none.
        let is_v6 = ((family << 28).cast_signed() >> 31).cast_unsigned();
        Self::from_v6_be([
            v6[0] & is_v6,
            v6[1] & is_v6,
            v6[2] & is_v6 | MAPPED_WORD & !is_v6,
            v6[3] & is_v6 | v4 & !is_v6,
        ])
    }

    /// The same address; `zero` is 0. The kernel's verifier does not know that, and takes the address for any.
    #[inline(always)]
    #[must_use]
    pub const fn any(self, zero: u32) -> Self {
        match self.family() {
            Family::V4 => Self::from_v4_be(self.to_v4_be() ^ zero),
            Family::V6 => self.of_any_family(zero),
        }
    }

    /// The same, of which the verifier does not know the family either; `zero` is 0.
    #[inline(always)]
    #[must_use]
    pub const fn of_any_family(self, zero: u32) -> Self {
        let [a, b, c, d] = self.to_v6_be();
        Self::from_v6_be([a ^ zero, b ^ zero, c ^ zero, d ^ zero])
    }

    /// The source of packets to `destination` of a socket that is bound to this address, or to none. An IPv6 socket that is
    /// bound to an IPv6 address has another one in IPv4 (`LOOPBACK4_IPV6`, `__inet6_bind`, net/ipv6/af_inet6.c). `zero` is 0;
    /// the kernel's verifier does not know that, and learns nothing of either address.
    #[inline(always)]
    #[must_use]
    pub const fn as_source_to(self, destination: Self, zero: u32) -> Self {
        /// All bits unless the number is 0.
        const fn unless_zero(number: u32, zero: u32) -> u32 {
            let highest = number | number.wrapping_neg();
            (highest.cast_signed() >> 31).cast_unsigned() ^ zero
        }
        let [a, b, c, d] = self.to_v6_be();
        let to = destination.to_v6_be();
        let to_v6 = unless_zero(to[0] | to[1] | (to[2] ^ MAPPED_WORD), zero);
        let is_v6 = unless_zero(a | b | (c ^ MAPPED_WORD), zero);
        let is_bound = unless_zero(a | b | c | d, zero);
        let other = !to_v6 & is_v6 & is_bound;
        let instead = Self::SELF_V4.to_v6_be();
        Self::from_v6_be([
            a & !other | instead[0] & other,
            b & !other | instead[1] & other,
            c & !other | instead[2] & other,
            d & !other | instead[3] & other,
        ])
    }

    /// The sixteen octets, network byte order.
    #[inline(always)]
    #[must_use]
    pub const fn octets(self) -> [u8; 16] {
        self.octets
    }

    /// Four words in network byte order, as context structs take them.
    #[inline(always)]
    #[must_use]
    pub const fn to_v6_be(self) -> [u32; 4] {
        // SAFETY: both are sixteen bytes without padding or invalid values.
        #[expect(unsafe_code, reason = "byte by byte it does not fit BPF's stack")]
        unsafe {
            core::mem::transmute::<[u8; 16], [u32; 4]>(self.octets)
        }
    }

    /// The last word in network byte order: the IPv4 address, if this is one.
    #[inline(always)]
    #[must_use]
    pub const fn to_v4_be(self) -> u32 {
        self.to_v6_be()[3]
    }

    /// The family whose rules apply to this address.
    #[inline(always)]
    #[must_use]
    pub const fn family(self) -> Family {
        let words = self.to_v6_be();
        if words[0] | words[1] | (words[2] ^ MAPPED_WORD) == 0 {
            Family::V4
        } else {
            Family::V6
        }
    }

    /// Whether both are the same address. The derived `==` compiles to a call of `memcmp`, which
    /// BPF does not have.
    #[inline(always)]
    #[must_use]
    pub const fn is(self, other: Self) -> bool {
        let (a, b) = (self.to_v6_be(), other.to_v6_be());
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) == 0
    }

    /// Whether it is the address from which the sidecar calls the app.
    #[inline(always)]
    #[must_use]
    pub const fn is_self(self) -> bool {
        self.is(Self::SELF_V4) || self.is(Self::SELF_V6)
    }

    /// `0.0.0.0` or `::`, also in v4-mapped form.
    #[inline(always)]
    #[must_use]
    pub const fn is_unspecified(self) -> bool {
        self.is_unspecified_to(0)
    }

    /// The same; `zero` is 0. The kernel's verifier does not know that, and learns nothing of the address from the answer:
    /// the two ways that follow are one to it where they meet again.
    #[inline(always)]
    #[must_use]
    pub const fn is_unspecified_to(self, zero: u32) -> bool {
        let words = self.to_v6_be();
        // 0 if the third word is 0 or that of a v4-mapped address. Two comparisons would be two branches.
        let third = u32::from_be(words[2]);
        let third = third & !0xffff | ((third & 0xffff) + 1) & 0xfffe;
        words[0] | words[1] | words[3] | third | zero == 0
    }

    /// 127.0.0.0/8 or `::1`.
    #[inline(always)]
    #[must_use]
    pub const fn is_loopback(self) -> bool {
        match self.family() {
            Family::V4 => self.first_v4_octet() == 127,
            Family::V6 => self.is(Self::LOOPBACK_V6),
        }
    }

    /// Multicast of either family, or the IPv4 limited broadcast: destinations for which TCP's
    /// connect fails with ENETUNREACH whatever the routes say (`tcp_v4_connect`, `tcp_v6_connect`).
    #[inline(always)]
    #[must_use]
    pub const fn is_multicast_or_broadcast(self) -> bool {
        match self.family() {
            Family::V4 => self.first_v4_octet() & 0xf0 == 0xe0 || self.to_v4_be() == u32::MAX,
            Family::V6 => u32::from_be(self.to_v6_be()[0]) >> 24 == 0xff,
        }
    }

    /// fe80::/10: an address that only an interface makes complete (RFC 4291, 2.5.6).
    #[inline(always)]
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        match self.family() {
            Family::V4 => false,
            Family::V6 => u32::from_be(self.to_v6_be()[0]) >> 22 == 0xfe80 >> 6,
        }
    }

    #[inline(always)]
    const fn first_v4_octet(self) -> u32 {
        u32::from_be(self.to_v4_be()) >> 24
    }

    /// Where a redirected connection of this family is sent.
    #[inline(always)]
    #[must_use]
    pub const fn loopback_of(family: Family) -> Self {
        match family {
            Family::V4 => Self::LOOPBACK_V4,
            Family::V6 => Self::LOOPBACK_V6,
        }
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self::v4(v4.octets()),
            IpAddr::V6(v6) => Self::v6(v6.octets()),
        }
    }
}

impl From<Addr> for IpAddr {
    fn from(addr: Addr) -> Self {
        Ipv6Addr::from(addr.octets()).to_canonical()
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const MAPPED_WORD: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// Bits an IPv4 prefix length grows by in v4-mapped form.
pub const V4_PREFIX_OFFSET: u32 = 96;

const _: () = assert!(size_of::<Addr>() == 16);

#[cfg(test)]
mod tests;
