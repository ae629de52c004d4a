//! The decision: what happens to a connection. One pure function per direction, used by the kernel
//! programs, by `explain` and by tests.
//!
//! Source of the rule order: `istio-iptables` of Istio 1.18 and later (the *current* dialect of
//! docs/semantics.md), as its nat OUTPUT and PREROUTING rules, and in mode TPROXY those of mangle, evaluate
//! the first packet of a connection. Older versions differ in the `DIALECT_*` bits of the policy. Rule numbers in
//! comments are those of that document.

mod ahead;
mod dns;
mod inbound;
mod marked;
mod outbound;
#[cfg(test)]
mod tests;
mod transparent;

pub use dns::udp;
pub use inbound::{SSH_PORT, inbound, virtual_index};
pub use outbound::{effective_destination, outbound};

use crate::{
    addr::Addr,
    pod::{IfaceRow, Route},
    policy::{List, NO_ID},
    rule::Rule,
};

/// Table lookups the decision needs: maps in the kernel, plain collections elsewhere.
///
/// List lookups return the entry's position in the list as written.
pub trait Tables {
    /// The port's entry in one of the policy's port lists.
    fn port(&self, list: List, port: u16) -> Option<u32>;
    /// The entry of one of the policy's CIDR lists that holds the address.
    fn range(&self, list: List, addr: Addr) -> Option<u32>;
    /// The id's entry in one of the policy's owner lists.
    fn owner(&self, list: List, id: u32) -> Option<u32>;
    /// The pod's route to the address, [`Route::NONE`] if there is none.
    fn route(&self, addr: Addr) -> Route;
    /// Whether the address, which is none of loopback, is the pod's.
    #[inline(always)]
    fn is_own(&self, addr: Addr) -> bool {
        self.route(addr).is_local()
    }
    /// Whether the pod bypasses its sidecar because the sidecar has not listened yet.
    fn before_sidecar(&self) -> bool;
}

/// The process that created a socket, as netfilter's owner match sees it: filesystem uid and gid of
/// the creator, [`NO_ID`] for sockets the kernel itself opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// fsuid in the host's numbering.
    pub uid: u32,
    /// fsgid in the host's numbering; supplementary groups do not count.
    pub gid: u32,
}

impl Owner {
    /// No owner, or one that is not known.
    pub const UNKNOWN: Self = Self {
        uid: NO_ID,
        gid: NO_ID,
    };
}

/// A TCP connect about to happen in a pod, or a UDP connect or datagram.
#[derive(Clone, Copy, Debug)]
pub struct Outbound {
    /// Who created the socket.
    pub owner: Owner,
    /// The address the application bound, unspecified if it bound none.
    pub source: Addr,
    /// The address it dials.
    pub destination: Addr,
    /// The port it dials, host order.
    pub port: u16,
    /// `SO_MARK` of the socket, 0 if it has none.
    pub mark: u32,
    /// Whether the socket has an IPv6 routing header, and the destination is IPv6.
    pub routing_header: bool,
    /// Whether the pod has rules for the destination's family.
    pub captured_family: bool,
}

impl Outbound {
    /// Whether the application bound an address; `zero` as for [`Addr::is_unspecified_to`].
    #[inline(always)]
    #[must_use]
    pub const fn is_bound(&self, zero: u32) -> bool {
        !self.source.is_unspecified_to(zero)
    }
}

/// A SYN received for a pod: a new inbound connection.
#[derive(Clone, Copy, Debug)]
pub struct Inbound {
    /// The sender.
    pub source: Addr,
    /// The address it was sent to.
    pub destination: Addr,
    /// The port it was sent to, host order.
    pub port: u16,
    /// The policy's rule for the interface it came in on.
    pub iface: IfaceRow,
    /// Whether the pod has rules for the family.
    pub captured_family: bool,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to its destination directly.
    Untouched,
    /// It goes to the sidecar's capture port.
    Redirect {
        /// Capture port, host order.
        port: u16,
        /// Address the connecting socket gets if it is not bound; unspecified when the kernel
        /// chooses it. Not used for inbound connections.
        source: Addr,
        /// The address dialed, with `0.0.0.0` and `::` resolved to the address the kernel uses.
        dialed: Addr,
    },
    /// It goes to its destination in the pod, where the listener on the capture port takes it.
    Assign {
        /// Capture port, host order.
        port: u16,
        /// The address dialed, as in [`Verdict::Redirect`].
        dialed: Addr,
    },
    /// It goes to its destination in the pod directly, with [`Policy::transparent_mark`](crate::policy::Policy), and by lo
    /// only. Nothing else can send packets that come
    /// in by lo, so that no packet from outside passes for one of this connection, whatever its addresses are.
    BindToLoopback,
    /// Connect to the destination with the mark of [`Self::BindToLoopback`], not bound to anything.
    Mark,
    /// It fails.
    Fail {
        /// What the caller gets. An inbound connection is always refused with a reset.
        errno: i32,
    },
}

/// `EPERM`: what a program of a cgroup makes a call fail with.
pub const EPERM: i32 = 1;
/// `ECONNREFUSED`: what a client sees when the sidecar is down.
pub const ECONNREFUSED: i32 = 111;

/// A verdict and the rule behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happens.
    pub verdict: Verdict,
    /// Why.
    pub rule: Rule,
    /// Position in the rule's list, 0 for rules without one.
    pub index: u32,
}

impl Decision {
    /// An untouched connection.
    #[inline(always)]
    #[must_use]
    pub const fn untouched(rule: Rule) -> Self {
        Self::listed(Verdict::Untouched, rule, 0)
    }

    #[inline(always)]
    const fn listed(verdict: Verdict, rule: Rule, index: u32) -> Self {
        Self {
            verdict,
            rule,
            index,
        }
    }

    /// A refusal for a reason outside the rules: something the decision needs is missing.
    #[inline(always)]
    #[must_use]
    pub const fn refuse(rule: Rule) -> Self {
        Self::listed(
            Verdict::Fail {
                errno: ECONNREFUSED,
            },
            rule,
            0,
        )
    }
}
