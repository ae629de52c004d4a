use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::{Entrances, MAX_ENTRANCES};

fn link(index: u32, flags: LinkFlags, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = flags;
    message.attributes = attributes;
    message
}

fn found(links: &[LinkMessage], are_named: bool) -> Vec<u32> {
    let mut entrances = Entrances::default();
    links.iter().for_each(|link| entrances.add(link));
    entrances.interfaces(are_named).0.into_iter().collect()
}

#[test]
fn interfaces_that_route() {
    let up = LinkFlags::Up;
    let lo = link(1, up | LinkFlags::Loopback, vec![]);
    let (eth0, eth1) = (link(2, up, vec![]), link(3, up, vec![]));
    let down = link(4, LinkFlags::empty(), vec![]);
    let one = [lo.clone(), eth0.clone(), down];
    assert_eq!(found(&one, false), [0_u32; 0]);
    assert_eq!(found(&one, true), [2]);
    assert_eq!(found(&[lo, eth0, eth1], false), [2, 3]);

    let kind = |kind| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]);
    let bridge = link(5, up, vec![kind(InfoKind::Bridge)]);
    let vrf = link(6, up, vec![kind(InfoKind::Vrf)]);
    let port = link(7, up, vec![LinkAttribute::Controller(5)]);
    let routed = link(8, up, vec![LinkAttribute::Controller(6)]);
    let freed = link(9, up, vec![LinkAttribute::Controller(0)]);
    assert_eq!(
        found(&[bridge, vrf, port, routed, freed], false),
        [5, 6, 8, 9]
    );
}

#[test]
fn a_pod_has_a_quota() {
    let mut entrances = Entrances::default();
    for index in 0..MAX_ENTRANCES as u32 + 3 {
        entrances.add(&link(index, LinkFlags::Up, vec![]));
    }
    let (interfaces, omitted) = entrances.interfaces(false);
    assert_eq!((interfaces.len(), omitted), (MAX_ENTRANCES, 3));
    assert!(interfaces.contains(&0));
}
