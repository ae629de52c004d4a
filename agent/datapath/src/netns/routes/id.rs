//! The key of a route, in a form that Rust collections can hold.

use std::net::IpAddr;

use ipnet::IpNet;
use sidetrack_common::{
    addr::{Family, V4_PREFIX_OFFSET},
    pod::RouteKey,
};

/// A [`RouteKey`] that can be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteId {
    netns: u64,
    destination: IpNet,
}

impl RouteId {
    pub(super) fn new(netns: u64, destination: IpNet) -> Self {
        Self { netns, destination }
    }

    /// The route a map key stands for; `None` for a malformed key.
    #[must_use]
    pub fn of(key: &RouteKey) -> Option<Self> {
        let bits = key
            .prefix_len
            .checked_sub(RouteKey::host(0, key.addr).prefix_len - 128)?;
        let (addr, prefix) = match IpAddr::from(key.addr) {
            addr if key.family == Family::V4 as u32 && addr.is_ipv4() => {
                (addr, bits.checked_sub(V4_PREFIX_OFFSET)?)
            }
            addr if addr.is_ipv6() => (addr, bits),
            _ => return None,
        };
        Some(Self {
            netns: key.netns,
            destination: IpNet::new(addr, prefix.try_into().ok()?).ok()?,
        })
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
            self.netns,
            family,
            self.destination.network().into(),
            self.destination.prefix_len(),
        )
    }
}

#[cfg(test)]
mod tests;
