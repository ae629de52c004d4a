//! Policy routing: a pod's rules choose between tables by source address, mark and user of a socket.
//!
//! The agent writes the routes of a pod once for each *view*: the set of selectors that match. A namespace without
//! such rules has one view, 0.

use crate::{
    addr::{Addr, Family},
    decide::Outbound,
    policy::NO_ID,
};

/// Selectors that a pod may have for a family. With more, every destination counts as reachable.
pub const MAX_SELECTORS: usize = 4;

/// Key of a pod's selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct SelectorsKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// A [`Family`].
    pub family: u32,
    /// Padding, zero.
    pub pad: u32,
}

impl SelectorsKey {
    /// The key of one family.
    #[inline(always)]
    #[must_use]
    pub const fn new(netns: u64, family: Family) -> Self {
        Self {
            netns,
            family: family as u32,
            pad: 0,
        }
    }
}

/// Which sockets a rule is for: `from`, `fwmark` and `uidrange` of `ip rule` (`fib_rule_match` in net/core/fib_rules.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RouteSelector {
    /// The source address, with zeros where [`Self::source_mask`] has them.
    pub source: Addr,
    /// The bits of it that count.
    pub source_mask: Addr,
    /// The socket's mark, with zeros where [`Self::mark_mask`] has them.
    pub mark: u32,
    /// The bits of it that count.
    pub mark_mask: u32,
    /// The first user, in the host's numbering.
    pub first_uid: u32,
    /// The last one.
    pub last_uid: u32,
}

impl RouteSelector {
    /// Matches no socket.
    pub const NEVER: Self = Self {
        source: Addr::UNSPECIFIED,
        source_mask: Addr::UNSPECIFIED,
        mark: 1,
        mark_mask: 0,
        first_uid: 0,
        last_uid: u32::MAX,
    };

    /// Matches every socket.
    pub const ALWAYS: Self = Self {
        mark: 0,
        ..Self::NEVER
    };

    /// 1 if it matches a socket, else 0. Without a branch: each would double the paths that the kernel's verifier walks.
    #[inline(always)]
    fn matches(&self, socket: &RoutedSocket, opaque: impl Fn(u64) -> u64) -> u32 {
        let (own, wanted) = (socket.source.to_v6_be(), self.source.to_v6_be());
        let mask = self.source_mask.to_v6_be();
        let differs = (own[0] & mask[0] ^ wanted[0])
            | (own[1] & mask[1] ^ wanted[1])
            | (own[2] & mask[2] ^ wanted[2])
            | (own[3] & mask[3] ^ wanted[3])
            | (socket.mark & self.mark_mask ^ self.mark);
        let (differs, uid) = (u64::from(differs), u64::from(socket.uid));
        let is_below = uid.wrapping_sub(u64::from(self.first_uid));
        let is_above = u64::from(self.last_uid).wrapping_sub(uid);
        // The highest bit is set where there is a difference.
        let fails = opaque(differs.wrapping_neg()) | opaque(is_below) | opaque(is_above);
        (fails >> 63) as u32 ^ 1
    }
}

/// What rules can see of a socket.
#[derive(Clone, Copy, Debug)]
pub struct RoutedSocket {
    /// The source address, unspecified where the kernel is still to choose it.
    pub source: Addr,
    /// `SO_MARK`.
    pub mark: u32,
    /// Its user, in the host's numbering.
    pub uid: u32,
}

impl RoutedSocket {
    /// A socket of no user, neither bound nor marked.
    pub const PLAIN: Self = Self {
        source: Addr::UNSPECIFIED,
        mark: 0,
        uid: NO_ID,
    };

    /// The socket of a connection.
    #[inline(always)]
    #[must_use]
    pub const fn of(conn: &Outbound) -> Self {
        Self {
            source: conn.source,
            mark: conn.mark,
            uid: conn.owner.uid,
        }
    }
}

/// The view that a socket has of its pod's routes: a bit for each selector that matches. `opaque` returns its argument; in the
/// kernel programs the compiler does not know that, and makes no branch of a comparison.
#[inline(always)]
#[must_use]
pub fn view(
    selectors: &[RouteSelector; MAX_SELECTORS],
    socket: &RoutedSocket,
    opaque: impl Fn(u64) -> u64,
) -> u32 {
    let bit = |at: usize| selectors[at].matches(socket, &opaque) << at;
    bit(0) | bit(1) | bit(2) | bit(3)
}

const _: () = assert!(size_of::<SelectorsKey>() == 16);
const _: () = assert!(size_of::<RouteSelector>() == 48);

#[cfg(test)]
mod tests;
