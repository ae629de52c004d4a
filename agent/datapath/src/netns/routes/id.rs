//! The key of a route, in a form that Rust collections can hold.

use std::net::IpAddr;

use ipnet::IpNet;
use sidetrack_common::{
    addr::{Family, V4_PREFIX_OFFSET},
    pod::{RouteKey, VIEW_SHIFT},
};

/// A [`RouteKey`] that can be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteId {
    netns: u64,
    view: u32,
    destination: IpNet,
}

impl RouteId {
    /// The route of a view of a namespace's routes.
    pub(super) fn new((netns, view): (u64, u32), destination: IpNet) -> Self {
        Self {
            netns,
            view,
            destination,
        }
    }

    /// The route a map key stands for; `None` for a malformed key.
    #[must_use]
    pub fn of(key: &RouteKey) -> Option<Self> {
        let bits = key
            .prefix_len
            .checked_sub(RouteKey::host((0, 0), key.addr).prefix_len - 128)?;
        let family = key.family & ((1 << VIEW_SHIFT) - 1);
        let (addr, prefix) = match IpAddr::from(key.addr) {
            addr if family == Family::V4 as u32 && addr.is_ipv4() => {
                (addr, bits.checked_sub(V4_PREFIX_OFFSET)?)
            }
            addr if addr.is_ipv6() => (addr, bits),
            _ => return None,
        };
        Some(Self {
            netns: key.netns,
            view: key.family >> VIEW_SHIFT,
            destination: IpNet::new(addr, prefix.try_into().ok()?).ok()?,
        })
    }

    /// Whether it is of the view that packets have which enter the pod, and most sockets.
    #[must_use]
    pub fn is_in_first_view(&self) -> bool {
        self.view == 0
    }

    /// The addresses that the route is for.
    #[must_use]
    pub fn destination(&self) -> IpNet {
        self.destination
    }

    /// The map key.
    #[must_use]
    pub fn key(&self) -> RouteKey {
        let family = if self.destination.addr().is_ipv6() {
            Family::V6
        } else {
            Family::V4
        };
        RouteKey::new(
            (self.netns, self.view),
            family,
            self.destination.network().into(),
            self.destination.prefix_len(),
        )
    }
}

#[cfg(test)]
mod tests;
