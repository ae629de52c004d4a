use std::net::{IpAddr, SocketAddr};

use super::PodsByAddress;
use crate::observe::connections::{Connection, Direction, End, Owner, Via};

fn connection(direction: Direction, client: &str, dialed: &str) -> Connection {
    let address = |text: &str| -> SocketAddr { text.parse().expect("an address") };
    Connection {
        direction,
        end: End::Unknown,
        owner: Owner::Unknown,
        state: "ESTAB",
        client: Some(address(client)),
        original_destination: Some(address(dialed)),
        via: Via::Unknown,
        capture_port: None,
        uid: None,
        sent_bytes: None,
        received_bytes: None,
        idle_ms: None,
        local: address("127.0.0.1:1"),
        remote: address("127.0.0.1:2"),
        socket: 1,
    }
}

#[test]
fn the_other_end_is_named_by_its_address() {
    let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let mut names = PodsByAddress::default();
    names.add("shop/web", [address("10.0.0.1"), address("fd00::1")]);
    names.add("shop/db", [address("10.0.0.2"), address("10.0.0.9")]);
    names.add("shop/other", [address("10.0.0.9")]);
    let peer = |direction, client, dialed| names.peer(&connection(direction, client, dialed));
    let (web, db) = (Some("shop/web".to_owned()), Some("shop/db".to_owned()));
    use Direction::{Inbound, Outbound};
    assert_eq!(peer(Outbound, "10.0.0.1:5", "10.0.0.2:80"), db);
    assert_eq!(peer(Inbound, "10.0.0.1:5", "10.0.0.2:80"), web);
    assert_eq!(peer(Outbound, "[fd00::2]:5", "[fd00::1]:80"), web);
    assert_eq!(peer(Inbound, "[::ffff:10.0.0.1]:5", "10.0.0.2:80"), web);
    assert_eq!(peer(Outbound, "10.0.0.1:5", "10.96.0.1:443"), None);
    assert_eq!(
        peer(Outbound, "10.0.0.1:5", "10.0.0.9:80"),
        None,
        "two pods have it"
    );
}
