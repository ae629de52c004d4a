//! The interfaces by which packets for other addresses than the pod's may enter it.
//!
//! The rules come before routing, so that they capture such packets whether the pod forwards or not.

use std::collections::{BTreeMap, BTreeSet};

use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

/// Interfaces of one pod whose packets for other addresses follow the rules. Attaching a program waits for all CPUs.
pub const MAX_ENTRANCES: usize = 64;

/// What is known of the pod's interfaces, in this regard.
#[derive(Debug, Default)]
pub struct Entrances {
    /// Those that are up, without lo.
    up: BTreeSet<u32>,
    /// Those that belong to another interface, and to which.
    masters: BTreeMap<u32, u32>,
    /// Those that lead the packets of others to a routing table of their own, and do not take them.
    vrfs: BTreeSet<u32>,
}

impl Entrances {
    /// Adds an interface.
    pub(super) fn add(&mut self, link: &LinkMessage) {
        let (index, flags) = (link.header.index, link.header.flags);
        if flags.contains(LinkFlags::Up) && !flags.contains(LinkFlags::Loopback) {
            self.up.insert(index);
        }
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::Controller(master) => {
                    self.masters.insert(index, *master);
                }
                LinkAttribute::LinkInfo(info) if info.contains(&LinkInfo::Kind(InfoKind::Vrf)) => {
                    self.vrfs.insert(index);
                }
                _ => {}
            }
        }
    }

    /// The interfaces, the oldest first, and how many there are beyond [`MAX_ENTRANCES`]. A pod with one interface has
    /// no other host behind it and gets packets for other addresses from neighbors that want to try it; unless its
    /// policy names the interface, they are dropped without a program that would cost every packet.
    #[must_use]
    pub fn interfaces(&self, are_named: bool) -> (BTreeSet<u32>, usize) {
        if self.up.len() < 2 && !are_named {
            return (BTreeSet::new(), 0);
        }
        let up = self.up.iter().copied();
        let all: BTreeSet<u32> = up.filter(|index| self.routes(*index)).collect();
        let omitted = all.len().saturating_sub(MAX_ENTRANCES);
        (all.into_iter().take(MAX_ENTRANCES).collect(), omitted)
    }

    /// Whether an interface's packets are routed as such. Those of a bridge's port, for example, are the bridge's.
    fn routes(&self, index: u32) -> bool {
        let master = self.masters.get(&index).filter(|master| **master != 0);
        master.is_none_or(|master| self.vrfs.contains(master))
    }
}

#[cfg(test)]
mod tests;
