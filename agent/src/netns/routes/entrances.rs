//! The interfaces by which packets may enter a pod that it forwards to others.

use std::collections::{BTreeMap, BTreeSet};

use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, InfoKind, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};

/// Interfaces of one pod whose forwarded packets follow the rules. Attaching a program waits for all CPUs.
pub const MAX_ENTRANCES: usize = 64;

/// What is known of the pod's interfaces, in this regard.
#[derive(Debug, Default)]
pub struct Entrances {
    /// Those that are up, without lo, and whether they forward by a setting of their own.
    up: BTreeMap<u32, bool>,
    /// Those that belong to another interface, and to which.
    masters: BTreeMap<u32, u32>,
    /// Those that lead the packets of others to a routing table of their own, and do not take them.
    vrfs: BTreeSet<u32>,
    /// Whether all forward.
    all_forward: bool,
}

impl Entrances {
    /// Adds an interface.
    pub(super) fn add(&mut self, link: &LinkMessage) {
        let (index, flags) = (link.header.index, link.header.flags);
        if flags.contains(LinkFlags::Up) && !flags.contains(LinkFlags::Loopback) {
            self.up.insert(index, forwards(link));
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

    /// Notes whether all interfaces forward.
    pub(super) fn set_all_forward(&mut self, all_forward: bool) {
        self.all_forward = all_forward;
    }

    /// The interfaces, the oldest first, and how many there are beyond [`MAX_ENTRANCES`]. A pod with one
    /// interface forwards nothing from one to another.
    #[must_use]
    pub fn interfaces(&self) -> (BTreeSet<u32>, usize) {
        if self.up.len() < 2 {
            return (BTreeSet::new(), 0);
        }
        let all: BTreeSet<u32> = self
            .up
            .iter()
            .filter(|(index, own)| (self.all_forward || **own) && self.routes(**index))
            .map(|(index, _)| *index)
            .collect();
        let left_out = all.len().saturating_sub(MAX_ENTRANCES);
        (all.into_iter().take(MAX_ENTRANCES).collect(), left_out)
    }

    /// Whether an interface's packets are routed as such. Those of a bridge's port, for example, are the bridge's.
    fn routes(&self, index: u32) -> bool {
        let master = self.masters.get(&index).filter(|master| **master != 0);
        master.is_none_or(|master| self.vrfs.contains(master))
    }
}

fn forwards(link: &LinkMessage) -> bool {
    let families = link
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            LinkAttribute::AfSpecUnspec(families) => Some(families),
            _ => None,
        });
    families.flatten().any(|family| match family {
        AfSpecUnspec::Inet(settings) => settings
            .iter()
            .any(|it| matches!(it, AfSpecInet::DevConf(settings) if settings.forwarding != 0)),
        AfSpecUnspec::Inet6(settings) => settings.iter().any(forwards_v6),
        _ => false,
    })
}

/// An interface's `forwarding` alone does not forward IPv6, but is taken for it; `force_forwarding` does, since
/// Linux 6.17.
fn forwards_v6(settings: &AfSpecInet6) -> bool {
    matches!(settings, AfSpecInet6::DevConf(it) if it.forwarding != 0 || it.force_forwarding != 0)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

    use super::{Entrances, MAX_ENTRANCES};

    fn link(index: u32, flags: LinkFlags, attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = flags;
        message.attributes = attributes;
        message
    }

    fn found(links: &[LinkMessage], all_forward: bool) -> Vec<u32> {
        let mut entrances = Entrances::default();
        links.iter().for_each(|link| entrances.add(link));
        entrances.set_all_forward(all_forward);
        entrances.interfaces().0.into_iter().collect()
    }

    #[test]
    fn interfaces_that_route() {
        let up = LinkFlags::Up;
        let lo = link(1, up | LinkFlags::Loopback, vec![]);
        let (eth0, eth1) = (link(2, up, vec![]), link(3, up, vec![]));
        let down = link(4, LinkFlags::empty(), vec![]);
        assert_eq!(found(&[lo.clone(), eth0.clone(), down], true), [0_u32; 0]);
        assert_eq!(found(&[lo, eth0.clone(), eth1.clone()], true), [2, 3]);
        assert_eq!(found(&[eth0.clone(), eth1.clone()], false), [0_u32; 0]);

        let kind = |kind| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]);
        let bridge = link(5, up, vec![kind(InfoKind::Bridge)]);
        let vrf = link(6, up, vec![kind(InfoKind::Vrf)]);
        let port = link(7, up, vec![LinkAttribute::Controller(5)]);
        let routed = link(8, up, vec![LinkAttribute::Controller(6)]);
        let freed = link(9, up, vec![LinkAttribute::Controller(0)]);
        assert_eq!(
            found(&[bridge, vrf, port, routed, freed], true),
            [5, 6, 8, 9]
        );
    }

    #[test]
    fn a_pod_has_its_share() {
        let mut entrances = Entrances::default();
        for index in 0..MAX_ENTRANCES as u32 + 3 {
            entrances.add(&link(index, LinkFlags::Up, vec![]));
        }
        entrances.set_all_forward(true);
        let (interfaces, left_out) = entrances.interfaces();
        assert_eq!((interfaces.len(), left_out), (MAX_ENTRANCES, 3));
        assert!(interfaces.contains(&0));
    }
}
