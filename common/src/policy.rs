//! A policy: the result of a pod's annotations and arguments, in the form the kernel reads.
//!
//! Pods name a policy by id and equal policies are shared. The fixed part is one [`Policy`] row;
//! lists of any length are rows of their own that carry the policy's id. A policy in the map
//! never changes: a changed policy gets a new id.

use core::ops::Deref;

use crate::{
    addr::{Addr, Family, V4_PREFIX_OFFSET},
    dns::DNS_PORT,
};

/// "No such id" among uids and gids; the kernel never gives it to a user (`INVALID_UID`).
pub const NO_ID: u32 = u32::MAX;

/// The lists a policy can have. The number is part of map keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum List {
    /// Ports, `-o`: never captured outbound.
    OutPortExcluded = 1,
    /// Ports, `-q`: captured even if no range includes the destination.
    OutPortIncluded = 2,
    /// Ports, `-d` (with [`InboundMode::AllExcept`]) or `-b` (with [`InboundMode::Listed`]).
    InPort = 3,
    /// Ranges, `-x`.
    RangeExcluded = 4,
    /// Ranges, `-i`.
    RangeIncluded = 5,
    /// Proxy uids after the first.
    MoreProxyUids = 6,
    /// Proxy gids after the first.
    MoreProxyGids = 7,
    /// Owner groups that are captured; absent means all.
    GroupIncluded = 8,
    /// Owner groups that are not captured.
    GroupExcluded = 9,
    /// Port 53, if the policy has rules for DNS. The value is a [`DnsBlock`](crate::dns::DnsBlock), not a position.
    Dns = 10,
    /// Ranges: the DNS servers whose queries are captured.
    DnsServer = 11,
    /// Numbers: users, ahead of all other rules but those for interfaces. The value has a bit for each entry, as in the
    /// next two; an entry matches if its bit is set in the user's value and in the port's.
    OwnerExcluded = 12,
    /// Numbers: TCP ports of the same entries.
    OwnerTcpPort = 13,
    /// Numbers: UDP ports of the same entries.
    OwnerUdpPort = 14,
    /// Ranges: destinations that are never captured, after those entries.
    DestinationExcluded = 15,
    /// Numbers: ports that are never captured outbound, where [`List::OutPortExcluded`] stands, or with
    /// [`DIALECT_LO_UNTOUCHED`] after that.
    OutPortRangeExcluded = 16,
    /// Numbers: ports that are never captured inbound, whatever [`List::InPort`] says.
    InPortRangeExcluded = 17,
    /// Ranges: senders that are never captured, before the rules for ports.
    SourceExcluded = 18,
    /// Ranges: senders that are never captured, after [`List::InPortRangeExcluded`].
    SourceExcludedLate = 19,
    /// Marks of the proxy's sockets, as far as [`PROXY_MARK_BITS`] go. They are never captured, whatever they dial.
    ProxyMark = 20,
}

/// The bits of a socket's mark that are compared with [`List::ProxyMark`]. Others have the rest.
pub const PROXY_MARK_BITS: u32 = 0xfff;

/// Bits of the values in [`List::OwnerExcluded`]: so many entries of users, ports and protocols.
pub const OWNER_ENTRIES: u32 = 29;
/// Bits beside those for IPv4 and IPv6, after [`List::DestinationExcluded`]: queries over TCP go to the server they are
/// sent to.
pub const DNS_DIRECT_BITS: [u32; 2] = [29, 30];
/// A bit beside those, at last: nothing is captured outbound.
pub const OUTBOUND_OFF_BIT: u32 = 31;

impl List {
    /// Every list, in the order of the numbers.
    pub const ALL: [Self; 20] = [
        Self::OutPortExcluded,
        Self::OutPortIncluded,
        Self::InPort,
        Self::RangeExcluded,
        Self::RangeIncluded,
        Self::MoreProxyUids,
        Self::MoreProxyGids,
        Self::GroupIncluded,
        Self::GroupExcluded,
        Self::Dns,
        Self::DnsServer,
        Self::OwnerExcluded,
        Self::OwnerTcpPort,
        Self::OwnerUdpPort,
        Self::DestinationExcluded,
        Self::OutPortRangeExcluded,
        Self::InPortRangeExcluded,
        Self::SourceExcluded,
        Self::SourceExcludedLate,
        Self::ProxyMark,
    ];

    /// This list's bit in [`Policy::lists`].
    #[inline(always)]
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u16
    }
}

const _: () = {
    let mut index = 0;
    while index < List::ALL.len() {
        // `Policy::zero` has this bit.
        assert!(List::ALL[index].bit() >> 31 == 0);
        index += 1;
    }
};

/// Which inbound ports are captured (`-b`). Values of [`Policy::inbound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum InboundMode {
    /// `-b ""`: nothing is captured.
    Off = 0,
    /// `-b *`: everything but [`List::InPort`].
    AllExcept = 1,
    /// `-b 80,443`: only [`List::InPort`].
    Listed = 2,
}

/// [`Policy::dialect`]: connections over lo from 127.0.0.6 or ::6 are untouched (Istio 1.3).
pub const DIALECT_SELF_EXEMPT: u8 = 1;
/// [`Policy::dialect`]: connections over lo to other than LB go to the outbound port, with any owner
/// (until Istio 1.2).
pub const DIALECT_LOCAL_CAPTURED: u8 = 2;
/// [`Policy::dialect`]: the proxy's connections to its own tunnel port are untouched (Istio 1.18).
pub const DIALECT_TUNNEL_OUT: u8 = 4;
/// [`Policy::dialect`]: the inbound tunnel port is untouched (Istio 1.7).
pub const DIALECT_TUNNEL_IN: u8 = 8;
/// [`Policy::dialect`]: port 22 is untouched inbound when all ports are captured (until Istio 1.12).
pub const DIALECT_SSH_IN: u8 = 16;
/// With rules for DNS: TCP connections to port 53 that stay in the pod pass the rules about such connections, those of
/// the proxy's users to the inbound port and "not the proxy's: untouched" (Istio since 1.13).
pub const DIALECT_DNS_PASSES_LOCAL: u8 = 32;
/// [`Policy::dialect`]: no rule is about connections that stay in the pod, the proxy's neither (Linkerd, Consul).
pub const DIALECT_NO_LOCAL_RULES: u8 = 64;
/// [`Policy::dialect`]: after the rules by owner, connections over lo are untouched (Linkerd).
pub const DIALECT_LO_UNTOUCHED: u8 = 128;

/// The fixed part of a policy. Ports in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Policy {
    /// `-p`: outbound connections are sent here.
    pub outbound_port: u16,
    /// `-z`: inbound connections are handed to the listener on this port.
    pub inbound_port: u16,
    /// `-e`: the inbound tunnel port, exempt in both directions.
    pub tunnel_port: u16,
    /// An [`InboundMode`].
    pub inbound: u8,
    /// 1 when `-i` is `*`.
    pub outbound_all: u8,
    /// 1 when `-i` names a loopback range: all rules then apply to the app's calls to its own pod.
    pub loopback_included: u8,
    /// Prefix length of [`Policy::loopback_v4`], 8 to 32.
    pub loopback_v4_prefix: u8,
    /// `DIALECT_*` bits: the differences between the rules of meshes and of their versions.
    pub dialect: u8,
    /// 1 when `-k` names interfaces: inbound connections may go to the outbound port's listener.
    pub virtual_interfaces: u8,
    /// `ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR`: IPv4 destinations that are the pod's own loopback.
    pub loopback_v4: [u8; 4],
    /// Which [`List`]s have rows: [`List::bit`]s.
    pub lists: u32,
    /// First proxy uid, in the host's numbering, or [`NO_ID`].
    pub proxy_uid: u32,
    /// First proxy gid, in the host's numbering, or [`NO_ID`].
    pub proxy_gid: u32,
    /// `-t` in mode TPROXY: mark of the sockets by which the sidecar calls the app from the client's address, or that
    /// they get then. 0 in mode REDIRECT.
    pub transparent_mark: u32,
}

/// A policy's row, wherever it is.
///
/// The kernel's programs have a type of their own for it: of a reference LLVM keeps every field that it has read, and the
/// stack is too small for that.
pub trait Row: Deref<Target = Policy> + Copy {}

impl<T: Deref<Target = Policy> + Copy> Row for T {}

impl Policy {
    /// Whether a list has any row.
    #[inline(always)]
    #[must_use]
    pub const fn has(&self, list: List) -> bool {
        self.lists & list.bit() != 0
    }

    /// 0: no list has the highest bit. The kernel's verifier does not know that: a path with this value and one with a value from a map are one to it.
    #[inline(always)]
    #[must_use]
    pub const fn zero(&self) -> u32 {
        (self.lists.cast_signed() >> 31).cast_unsigned()
    }

    /// Whether the mode is TPROXY.
    #[inline(always)]
    #[must_use]
    pub const fn is_transparent(&self) -> bool {
        self.transparent_mark != 0
    }

    /// Whether the proxy's connections to this port of its own pod are untouched: it is the tunnel port.
    #[inline(always)]
    #[must_use]
    pub const fn is_tunnel_out(&self, port: u16) -> bool {
        port == self.tunnel_port && self.has_dialect(DIALECT_TUNNEL_OUT)
    }

    /// Whether a connection to this port passes the rules about connections that stay in the pod.
    #[inline(always)]
    #[must_use]
    pub const fn passes_local(&self, port: u16) -> bool {
        port == DNS_PORT && self.has_dialect(DIALECT_DNS_PASSES_LOCAL)
    }

    /// Whether rules are about connections that stay in the pod.
    #[inline(always)]
    #[must_use]
    pub const fn has_local_rules(&self) -> bool {
        !self.has_dialect(DIALECT_NO_LOCAL_RULES)
    }

    /// Whether one of the `DIALECT_*` bits is set.
    #[inline(always)]
    #[must_use]
    pub const fn has_dialect(&self, dialect_bit: u8) -> bool {
        self.dialect & dialect_bit != 0
    }

    /// Whether `destination` is LB of docs/semantics.md: 127.0.0.1/32 unless configured wider, or `::1`.
    #[inline(always)]
    #[must_use]
    pub const fn is_loopback(&self, destination: Addr) -> bool {
        match destination.family() {
            Family::V4 => {
                // The prefix is 8 to 32 by construction; the mask keeps the shift in range for
                // the verifier whatever is in the map.
                let shift = (32 - self.loopback_v4_prefix as u32) & 31;
                let own = u32::from_be_bytes(self.loopback_v4);
                let dialed = u32::from_be(destination.to_v4_be());
                own >> shift == dialed >> shift
            }
            Family::V6 => destination.is(Addr::LOOPBACK_V6),
        }
    }
}

/// Key of a port row. The value is the entry's position in the list as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct PortKey {
    /// Policy id.
    pub policy: u32,
    /// A [`List`].
    pub list: u16,
    /// Port, host order.
    pub port: u16,
}

/// Key of an owner row. The value is the entry's position in the list as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct OwnerKey {
    /// Policy id.
    pub policy: u32,
    /// A [`List`].
    pub list: u32,
    /// uid or gid in the host's numbering.
    pub id: u32,
}

/// Key of a CIDR row in a longest-prefix trie. The value is the entry's position in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RangeKey {
    /// Significant bits after this field: 64 for policy, list and family, plus the address's.
    pub prefix_len: u32,
    /// Policy id.
    pub policy: u32,
    /// A [`List`].
    pub list: u16,
    /// A [`Family`]; keeps `::/0` from matching v4-mapped addresses.
    pub family: u16,
    /// The range's first address.
    pub addr: Addr,
}

impl RangeKey {
    const FIXED_BITS: u32 = 64;

    /// A row for `addr/prefix`; an IPv4 prefix counts in 32 bits, an IPv6 one in 128.
    #[must_use]
    pub const fn new(policy: u32, list: List, addr: Addr, prefix: u8) -> Self {
        let family = addr.family();
        let bits = match family {
            Family::V4 => V4_PREFIX_OFFSET + prefix as u32,
            Family::V6 => prefix as u32,
        };
        Self {
            prefix_len: Self::FIXED_BITS + bits,
            policy,
            list: list as u16,
            family: family as u16,
            addr,
        }
    }

    /// The key that looks up one address.
    #[inline(always)]
    #[must_use]
    pub const fn host(policy: u32, list: List, addr: Addr) -> Self {
        Self {
            prefix_len: Self::FIXED_BITS + 128,
            policy,
            list: list as u16,
            family: addr.family() as u16,
            addr,
        }
    }
}

const _: () = assert!(size_of::<Policy>() == 32);
const _: () = assert!(size_of::<PortKey>() == 8);
const _: () = assert!(size_of::<OwnerKey>() == 12);
const _: () = assert!(size_of::<RangeKey>() == 28);

#[cfg(test)]
mod tests;
