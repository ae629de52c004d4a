//! A pod in the kernel's maps. A pod **is** its network namespace: the key is the namespace's
//! cookie (`SO_NETNS_COOKIE`, Linux 5.14; unique until reboot, never reused).

use crate::{
    addr::{Addr, Family, V4_PREFIX_OFFSET},
    btf::TextByte,
};

/// Bytes of a Kubernetes namespace name, NUL-padded (DNS label: 63).
pub const NAMESPACE_LEN: usize = 64;
/// Bytes of a pod name, NUL-padded (DNS subdomain: 253).
pub const NAME_LEN: usize = 256;
/// Bytes of a pod UID, NUL-padded (36 for a UUID, more for static pods' hashes).
pub const UID_LEN: usize = 64;

/// Index of lo in every network namespace, whatever its name is there (`LOOPBACK_IFINDEX` of include/net/flow.h).
pub const LOOPBACK_IFINDEX: u32 = 1;

/// [`Pod::flags`]: the IPv6 rules apply.
pub const POD_CAPTURE_V6: u32 = 1;
/// [`Pod::flags`]: the agent added `::6/128` to the pod's lo and removes it on release.
pub const POD_ADDED_SELF_V6: u32 = 2;
/// [`Pod::flags`]: some rule names an interface, so interface rows are looked up.
pub const POD_HAS_IFACE_RULES: u32 = 4;
/// [`Pod::flags`]: outbound connections bypass the sidecar until it first listens. The pod has a row
/// in [`BEFORE_SIDECAR`](crate::names::BEFORE_SIDECAR) until then.
pub const POD_BEFORE_SIDECAR: u32 = 8;
/// [`Pod::flags`]: outbound IPv4 connections are redirected to a target of their own for each destination
/// ([`Target::dedicated`](crate::target::Target::dedicated)).
pub const POD_OWN_TARGETS: u32 = 16;
/// [`Pod::flags`]: a program on the pod's interfaces asks for decisions about packets that enter
/// ([`Probe`](crate::forward::Probe)).
pub const POD_FORWARDS: u32 = 1 << 10;
/// [`Pod::flags`]: the same as [`POD_OWN_TARGETS`] for IPv6. Nothing from outside is for these targets.
pub const POD_OWN_TARGETS_V6: u32 = 1 << 12;
/// [`Pod::flags`]: DNS queries over UDP are captured by programs of their own, which count UDP as well.
pub const POD_DNS: u32 = 1 << 11;
/// [`Pod::flags`]: a program on the pod's interfaces looks for the listeners that connections of the node itself reach,
/// whatever the rules capture. It asks for no decision ([`Probe::Established`](crate::forward::Probe)).
pub const POD_NODE_CALLS: u32 = 1 << 13;
/// [`Pod::flags`]: rules of policy routing choose between views of the pod's routes
/// ([`route_rules`](crate::route_rules)).
pub const POD_ROUTE_RULES: u32 = 1 << 14;
/// [`Pod::flags`]: the upper half is a filter of the pod's addresses, as [`address_bit`] sets it. All bits are set if
/// any address may be the pod's.
pub const POD_ANY_ADDRESS: u32 = 0xffff << ADDRESS_SHIFT;
/// [`Pod::flags`]: bits below the filter of addresses.
const ADDRESS_SHIFT: u32 = 16;

/// The bit of an address in the filter of a pod's addresses. Several addresses may have the same one.
#[inline(always)]
#[must_use]
pub const fn address_bit(addr: Addr) -> u32 {
    const MIX: u32 = 0x9e37_79b9;
    const BITS: u32 = 4;
    let words = addr.to_v6_be();
    let mixed = (words[0] ^ words[1] ^ words[2] ^ words[3]).wrapping_mul(MIX);
    1 << (ADDRESS_SHIFT + (mixed >> (u32::BITS - BITS)))
}

/// Whether flags of a pod allow that an address is the pod's; then its routes say so. Most connections come from
/// other addresses, and the longest-prefix lookup of a route costs more than all else in their decision.
/// Loopback addresses are not in the filter.
#[inline(always)]
#[must_use]
pub const fn may_be_own(flags: u32, addr: Addr) -> bool {
    flags & address_bit(addr) != 0
}

/// Whether flags of a pod say that destinations of this family have targets of their own.
#[inline(always)]
#[must_use]
pub const fn has_own_targets(flags: u32, family: Family) -> bool {
    let flag = match family {
        Family::V4 => POD_OWN_TARGETS,
        Family::V6 => POD_OWN_TARGETS_V6,
    };
    flags & flag != 0
}

/// Whether flags of a pod say that this family's rules apply. IPv4 rules always do.
#[inline(always)]
#[must_use]
pub const fn captures(flags: u32, family: Family) -> bool {
    match family {
        Family::V4 => true,
        Family::V6 => flags & POD_CAPTURE_V6 != 0,
    }
}

/// One enrolled pod: the policy of its row applies to its connections. The row also holds the pod's
/// name, so that the pinned maps show which pods are intercepted while no agent runs.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Pod {
    /// Policy id.
    pub policy: u32,
    /// `POD_*` bits.
    pub flags: u32,
    /// Inode of the network namespace, as `ls -l /proc/PID/ns/net` shows it.
    pub netns_inode: u64,
    /// Kubernetes namespace.
    pub namespace: [TextByte; NAMESPACE_LEN],
    /// Pod name.
    pub name: [TextByte; NAME_LEN],
    /// Pod UID.
    pub uid: [TextByte; UID_LEN],
}

impl Pod {
    /// Whether this family's rules apply. IPv4 rules always do.
    #[inline(always)]
    #[must_use]
    pub const fn captures(&self, family: Family) -> bool {
        captures(self.flags, family)
    }
}

/// The result of a lookup in a pod's routing tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RouteKind {
    /// No route: ENETUNREACH.
    None = 0,
    /// An address of the pod: the packet goes over lo (`-o lo`).
    Local = 1,
    /// Off the pod.
    Unicast = 2,
    /// An unreachable route: EHOSTUNREACH.
    Unreachable = 3,
    /// A prohibit route: EACCES.
    Prohibit = 4,
    /// A blackhole route: EINVAL.
    Blackhole = 5,
    /// A broadcast or multicast route, which TCP cannot use: ENETUNREACH.
    Group = 6,
    /// A throw route, which ends the lookup in its table, and no other table has a route: ENETUNREACH.
    Throw = 7,
    /// The pod has more addresses than the agent follows, so it is unknown whether this is one of them.
    Unknown = 8,
}

/// [`Route::flags`]: the output device is in the policy's excludeInterfaces.
const ROUTE_DEVICE_EXCLUDED: u32 = 1;
/// Above the flags: the device's position in that list.
const ROUTE_POSITION_SHIFT: u32 = 8;

/// One route of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Route {
    /// A [`RouteKind`].
    pub kind: u32,
    /// Whether and where the policy excludes the device, see [`Route::excluded`].
    pub flags: u32,
    /// Output device.
    pub ifindex: u32,
    /// Source address the kernel picks for an unbound socket; unspecified where the route alone does
    /// not determine it.
    pub source: Addr,
}

impl Route {
    /// No entry in the routing tables.
    pub const NONE: Self = Self {
        kind: RouteKind::None as u32,
        flags: 0,
        ifindex: 0,
        source: Addr::UNSPECIFIED,
    };

    /// [`Route::flags`] of a route by a device that is in the policy's excludeInterfaces, at this
    /// position.
    #[must_use]
    pub const fn excluding(position: u32) -> u32 {
        position << ROUTE_POSITION_SHIFT | ROUTE_DEVICE_EXCLUDED
    }

    /// The device's position in the policy's excludeInterfaces, if it is listed.
    #[inline(always)]
    #[must_use]
    pub const fn excluded(&self) -> Option<u32> {
        if self.flags & ROUTE_DEVICE_EXCLUDED == 0 {
            return None;
        }
        Some(self.flags >> ROUTE_POSITION_SHIFT)
    }

    /// Whether packets stay in the pod.
    #[inline(always)]
    #[must_use]
    pub const fn is_local(&self) -> bool {
        self.kind == RouteKind::Local as u32
    }

    /// Whether the kernel passes over the route for a socket that is bound to an interface, 0 for none: it is of another
    /// interface (`fib_table_lookup`, `rt6_device_match`). What leaves by lo stays in the pod.
    #[inline(always)]
    #[must_use]
    pub const fn is_passed_over(&self, device: u32) -> bool {
        let is_bound = device != 0 && device != LOOPBACK_IFINDEX;
        let is_by_device = self.is_local() || self.is_unicast() || self.flags != 0;
        is_bound && device != self.ifindex && is_by_device
    }

    /// The errno of connect if the route is unusable (`fib_props` in net/ipv4/fib_semantics.c,
    /// `ip6_route_type_error` for IPv6; both families agree).
    #[inline(always)]
    #[must_use]
    pub const fn errno(&self) -> i32 {
        const EACCES: i32 = 13;
        const EINVAL: i32 = 22;
        const ENETUNREACH: i32 = 101;
        const EHOSTUNREACH: i32 = 113;
        if self.kind == RouteKind::Unreachable as u32 {
            EHOSTUNREACH
        } else if self.kind == RouteKind::Prohibit as u32 {
            EACCES
        } else if self.kind == RouteKind::Blackhole as u32 {
            EINVAL
        } else {
            ENETUNREACH
        }
    }

    /// Whether the route has a device. The kernel looks for one before it checks the source address.
    #[inline(always)]
    #[must_use]
    pub const fn has_device(&self) -> bool {
        self.is_unicast() || self.kind == RouteKind::Group as u32
    }

    /// Whether nothing is known about the destination.
    #[inline(always)]
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.kind == RouteKind::Unknown as u32
    }

    /// Whether packets leave the pod.
    #[inline(always)]
    #[must_use]
    pub const fn is_unicast(&self) -> bool {
        self.kind == RouteKind::Unicast as u32
    }
}

/// Key of a route row in a longest-prefix trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RouteKey {
    /// Significant bits after this field: 96 for family, view and pod, plus the address's.
    pub prefix_len: u32,
    /// A [`Family`], and above [`VIEW_SHIFT`] the view of the routes that a socket has
    /// ([`route_rules`](crate::route_rules)).
    pub family: u32,
    /// Network namespace cookie.
    pub netns: u64,
    /// The route's destination.
    pub addr: Addr,
}

/// Position of the view in [`RouteKey::family`].
pub const VIEW_SHIFT: u32 = 8;

impl RouteKey {
    const FIXED_BITS: u32 = 96;

    /// A row of a view for `addr/prefix`; an IPv4 prefix counts in 32 bits, an IPv6 one in 128.
    #[must_use]
    pub const fn new((netns, view): (u64, u32), family: Family, addr: Addr, prefix: u8) -> Self {
        let bits = match family {
            Family::V4 => V4_PREFIX_OFFSET + prefix as u32,
            Family::V6 => prefix as u32,
        };
        Self {
            prefix_len: Self::FIXED_BITS + bits,
            family: family as u32 | view << VIEW_SHIFT,
            netns,
            addr,
        }
    }

    /// The key that looks up one address in a view.
    #[inline(always)]
    #[must_use]
    pub const fn host((netns, view): (u64, u32), addr: Addr) -> Self {
        Self {
            prefix_len: Self::FIXED_BITS + 128,
            family: addr.family() as u32 | view << VIEW_SHIFT,
            netns,
            addr,
        }
    }
}

/// Key of an interface row. The value is an [`IfaceRow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct IfaceKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// Interface index in the pod.
    pub ifindex: u32,
    /// Padding, zero.
    pub pad: u32,
}

/// Value of an interface row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct IfaceRow {
    /// An [`IfaceRule`].
    pub rule: u32,
    /// Position of the interface in the list of the policy that names it.
    pub position: u32,
}

impl IfaceRow {
    /// An interface that no list names.
    pub const PLAIN: Self = Self::new(IfaceRule::Plain, 0);

    /// A row.
    #[must_use]
    pub const fn new(rule: IfaceRule, position: u32) -> Self {
        Self {
            rule: rule as u32,
            position,
        }
    }
}

/// How the policy treats an ingress interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum IfaceRule {
    /// No list names it.
    Plain = 0,
    /// `-c`: connections that come in here are untouched.
    Excluded = 1,
    /// `-k`: connections that come in here count as outbound.
    Virtual = 2,
}

const _: () = assert!(size_of::<Pod>() == 16 + NAMESPACE_LEN + NAME_LEN + UID_LEN);
const _: () = assert!(size_of::<Route>() == 28);
const _: () = assert!(size_of::<RouteKey>() == 32);
const _: () = assert!(size_of::<IfaceKey>() == 16);
const _: () = assert!(size_of::<IfaceRow>() == 8);

#[cfg(test)]
mod tests;
