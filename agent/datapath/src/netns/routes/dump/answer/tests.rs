use netlink_packet_core::{NetlinkDeserializable as _, NetlinkHeader};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkInfo},
};

use super::{Answer, add};

const IFINFOMSG: [u8; 16] = [0; 16];

fn answer(message_type: u16, payload: &[u8]) -> Answer {
    let mut header = NetlinkHeader::default();
    header.message_type = message_type;
    Answer::deserialize(&header, payload).expect("never fails")
}

#[test]
fn names_of_any_bytes_do_not_hide_an_interface() {
    let mut payload = IFINFOMSG.to_vec();
    payload[4] = 7;
    add(&mut payload, libc::IFLA_IFNAME, b"et\xff0\0");
    add(&mut payload, libc::IFLA_IFALIAS, b"\xff\0");
    let mut info = Vec::new();
    add(&mut info, libc::IFLA_INFO_KIND, b"vrf\0");
    // What a VRF is made of, cut off.
    add(&mut info, libc::IFLA_INFO_DATA, &[9]);
    add(&mut payload, libc::IFLA_LINKINFO, &info);
    let answer = answer(libc::RTM_NEWLINK, &payload);
    let Some(RouteNetlinkMessage::NewLink(link)) = answer.message else {
        panic!("{answer:?}");
    };
    assert_eq!(link.header.index, 7);
    assert_eq!(
        link.attributes,
        [
            LinkAttribute::IfName("et\\xff0".to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vrf)]),
        ]
    );
}

#[test]
fn what_cannot_be_read_says_of_which_family_it_is() {
    // The number of an interface in three bytes.
    for (family, is_v6) in [
        (libc::AF_INET, Some(false)),
        (libc::AF_INET6, Some(true)),
        (libc::AF_UNSPEC, None),
    ] {
        let mut payload = vec![0; 12];
        payload[0] = family as u8;
        add(&mut payload, libc::RTA_OIF, &[1, 2, 3]);
        let answer = answer(libc::RTM_NEWROUTE, &payload);
        assert!(answer.message.is_none(), "{answer:?}");
        assert_eq!(answer.is_v6(), is_v6);
    }
}

#[test]
fn attributes_that_end_nowhere_are_none() {
    for rest in [&[][..], &[1], &[3, 0, 3, 0], &[9, 0, 3, 0, 1]] {
        let payload = [&IFINFOMSG, rest].concat();
        let answer = answer(libc::RTM_NEWLINK, &payload);
        let Some(RouteNetlinkMessage::NewLink(link)) = answer.message else {
            panic!("{answer:?}");
        };
        assert!(link.attributes.is_empty(), "{link:?}");
    }
}
