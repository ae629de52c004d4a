use std::net::SocketAddr;

use netlink_packet_sock_diag::constants::{TCP_ESTABLISHED, TCP_SYN_RECV, TCP_SYN_SENT};
use sidetrack_common::{
    addr::Addr,
    conn::{Destination, Role, SockRecord},
    target::Target,
};

use super::{Connection, Direction, End, Listeners, Owner, Tables, Via, explain};
use sidetrack_datapath::kernel::sock_records::OpenSocket;

/// A pod whose target 127.64.0.1 names 10.1.0.9:80.
struct Pod {
    proxy: Option<u32>,
}

const POD: Pod = Pod { proxy: Some(1337) };
const APP: Option<u32> = Some(1000);
const PROXY: Option<u32> = Some(1337);

impl Tables for Pod {
    fn destination(&self, target: Target) -> Option<Destination> {
        let is_known = target.addr.is(Addr::v4([127, 64, 0, 1])) && target.port == 15001;
        is_known.then_some(Destination {
            dialed: Addr::v4([10, 1, 0, 9]),
            source: Addr::v4([10, 77, 0, 2]),
            dialed_port: 80,
            asked_from: 0,
            retired: 0,
        })
    }

    fn is_proxy(&self, uid: u32) -> Option<bool> {
        self.proxy.map(|proxy| proxy == uid)
    }

    fn outbound_port(&self) -> Option<u16> {
        Some(15001)
    }

    fn inbound_port(&self) -> Option<u16> {
        Some(15006)
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn socket(local: &str, remote: &str, uid: Option<u32>) -> OpenSocket {
    OpenSocket {
        state: TCP_ESTABLISHED,
        local: at(local),
        remote: at(remote),
        uid,
        cookie: at(local).port().into(),
        traffic: None,
        has_connected: None,
        record: None,
    }
}

fn with(role: Role, mut socket: OpenSocket) -> OpenSocket {
    let is_direct = role as u16 == Role::Direct as u16;
    socket.record = Some(SockRecord {
        addr: Addr::v4([10, 1, 0, 8]),
        source: if is_direct {
            Addr::UNSPECIFIED
        } else {
            Addr::v4([10, 77, 0, 2])
        },
        port: 443,
        role: role as u16,
        capture_port: if is_direct { 0 } else { 15001 },
        target_port: if is_direct { 0 } else { 15001 },
    });
    socket
}

fn listeners(of: &[(&str, Option<u32>)]) -> Listeners {
    let mut listeners = Listeners::new();
    for (address, uid) in of {
        let address = at(address);
        let on_port = listeners.entry(address.port()).or_default();
        on_port.push((address.ip(), *uid));
    }
    listeners
}

/// The usual pod's: the application's on 80 and the sidecar's.
fn usual() -> Listeners {
    listeners(&[
        ("0.0.0.0:80", APP),
        ("0.0.0.0:15001", PROXY),
        ("0.0.0.0:15006", PROXY),
        ("0.0.0.0:15021", PROXY),
    ])
}

fn one(socket: OpenSocket) -> Connection {
    let mut rows = explain(&[socket], &usual(), &POD, false);
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

#[test]
fn a_target_names_the_destination() {
    for local in ["127.0.0.1:4000", "[::ffff:127.0.0.1]:4000"] {
        let remote = if local.starts_with('[') {
            "[::ffff:127.64.0.1]:15001"
        } else {
            "127.64.0.1:15001"
        };
        let row = one(socket(local, remote, APP));
        assert_eq!(
            (row.direction, row.end),
            (Direction::Outbound, End::Connecting)
        );
        assert_eq!(row.client, Some(at("10.77.0.2:4000")));
        assert_eq!(row.original_destination, Some(at("10.1.0.9:80")));
        assert_eq!((row.via, row.capture_port), (Via::Sidecar, Some(15001)));
        assert_eq!(row.owner, Owner::Application);
        assert_eq!(row.remote, at(remote), "as ss shows it");
    }
    let bound = one(socket("10.78.0.2:4000", "127.64.0.1:15001", APP));
    assert_eq!(bound.client, Some(at("10.78.0.2:4000")));
    let accepted = one(socket("127.64.0.1:15001", "127.0.0.1:4000", None));
    assert_eq!(
        (accepted.end, accepted.owner),
        (End::Accepted, Owner::Sidecar)
    );
    assert_eq!(accepted.client, Some(at("10.77.0.2:4000")));
    assert_eq!(accepted.original_destination, Some(at("10.1.0.9:80")));
}

#[test]
fn a_target_without_a_row_names_nothing() {
    let row = one(socket("127.0.0.1:4000", "127.64.0.2:15001", APP));
    assert_eq!(
        (row.direction, row.via),
        (Direction::Outbound, Via::Sidecar)
    );
    assert_eq!((row.client, row.original_destination), (None, None));
    // The application's own use of such an address.
    let own = with(
        Role::Direct,
        socket("127.0.0.1:4000", "127.64.0.2:8080", APP),
    );
    assert_eq!(one(own).via, Via::Direct);
    let own = with(
        Role::Direct,
        socket("127.0.0.1:4000", "127.64.0.2:15001", PROXY),
    );
    assert_eq!(one(own).via, Via::Direct);
    let old = one(socket("127.0.0.1:4000", "127.64.0.2:8080", APP));
    assert_eq!(old.direction, Direction::Unknown);
}

#[test]
fn a_record_names_the_destination() {
    let dialed = with(
        Role::Dialed,
        socket("127.0.0.1:4000", "127.128.0.1:15001", APP),
    );
    let row = one(dialed);
    assert_eq!(row.client, Some(at("10.77.0.2:4000")));
    assert_eq!(row.original_destination, Some(at("10.1.0.8:443")));
    assert_eq!((row.via, row.capture_port), (Via::Sidecar, Some(15001)));
    let accepted = with(
        Role::Accepted,
        socket("127.128.0.1:15001", "127.0.0.1:4000", None),
    );
    let row = one(accepted);
    assert_eq!((row.end, row.owner), (End::Accepted, Owner::Sidecar));
    assert_eq!(row.client, Some(at("10.77.0.2:4000")));
    let direct = with(
        Role::Direct,
        socket("10.77.0.2:4000", "10.1.0.7:443", PROXY),
    );
    let row = one(direct);
    assert_eq!((row.via, row.owner), (Via::Direct, Owner::Sidecar));
    assert_eq!(row.client, Some(at("10.77.0.2:4000")));
    assert_eq!(
        row.original_destination,
        Some(at("10.1.0.8:443")),
        "as dialed"
    );
}

#[test]
fn the_record_of_an_earlier_connect_says_nothing() {
    let stale = with(Role::Dialed, socket("10.77.0.2:4000", "10.1.0.7:443", APP));
    assert_eq!(one(stale).direction, Direction::Unknown);
}

#[test]
fn both_ends_are_shown_once() {
    let app = with(
        Role::Dialed,
        socket("127.0.0.1:4000", "127.128.0.1:15001", APP),
    );
    // Its record could not be stored.
    let sidecar = socket("127.128.0.1:15001", "127.0.0.1:4000", PROXY);
    let proxy = with(
        Role::Direct,
        socket("127.0.0.6:5000", "10.77.0.2:80", PROXY),
    );
    let served = socket("10.77.0.2:80", "127.0.0.6:5000", APP);
    let sockets = [served, app, sidecar, proxy];
    let rows = explain(&sockets, &usual(), &POD, false);
    let vias: Vec<Via> = rows.iter().map(|row| row.via).collect();
    assert_eq!(
        vias,
        [Via::Sidecar, Via::Direct],
        "in the order of destinations"
    );
    let rows = explain(&sockets, &usual(), &POD, true);
    assert_eq!(rows.len(), 4);
    let accepted = rows.iter().find(|row| row.local == at("127.128.0.1:15001"));
    let accepted = accepted.unwrap();
    assert_eq!(accepted.original_destination, Some(at("10.1.0.8:443")));
    assert_eq!(
        (accepted.end, accepted.owner),
        (End::Accepted, Owner::Sidecar)
    );
    let served = rows
        .iter()
        .find(|row| row.local == at("10.77.0.2:80"))
        .unwrap();
    assert_eq!(
        (served.direction, served.end),
        (Direction::Inbound, End::Accepted)
    );
    // The application has gone.
    let rows = explain(&sockets[2..3], &usual(), &POD, false);
    assert_eq!(rows[0].direction, Direction::Outbound);
    assert_eq!(
        (rows[0].via, rows[0].original_destination),
        (Via::Unknown, None)
    );
}

#[test]
fn a_socket_that_is_listed_twice_is_one() {
    let served = socket("10.77.0.2:80", "10.0.0.9:5000", APP);
    let rows = explain(&[served.clone(), served], &usual(), &POD, true);
    assert_eq!(rows.len(), 1);
}

#[test]
fn the_user_shows_who_has_an_inbound_connection() {
    let inbound = |local: &str, uid| {
        let row = one(socket(local, "10.0.0.9:5000", uid));
        assert_eq!(row.direction, Direction::Inbound, "{local}");
        assert_eq!(row.client, Some(at("10.0.0.9:5000")));
        assert_eq!(row.original_destination, Some(at(local)));
        (row.owner, row.via, row.capture_port)
    };
    assert_eq!(
        inbound("10.77.0.2:80", PROXY),
        (Owner::Sidecar, Via::Sidecar, Some(15006))
    );
    assert_eq!(
        inbound("10.77.0.2:80", APP),
        (Owner::Application, Via::Direct, None)
    );
    assert_eq!(
        inbound("10.77.0.2:80", None),
        (Owner::Unknown, Via::Unknown, None)
    );
    // Its own listener or the one on the capture port.
    assert_eq!(
        inbound("10.77.0.2:15021", PROXY),
        (Owner::Sidecar, Via::Unknown, None)
    );
    let nameless = Pod { proxy: None };
    let sockets = [socket("10.77.0.2:80", "10.0.0.9:5000", PROXY)];
    let row = &explain(&sockets, &usual(), &nameless, false)[0];
    assert_eq!((row.owner, row.via), (Owner::Unknown, Via::Unknown));
}

#[test]
fn what_is_not_proved_is_unknown() {
    // The sidecar takes a port on which nothing listens, or connected before the pod was enrolled.
    let row = one(socket("10.77.0.2:8080", "10.0.0.9:5000", PROXY));
    assert_eq!(
        (row.direction, row.end, row.via),
        (Direction::Unknown, End::Unknown, Via::Unknown)
    );
    assert_eq!((row.client, row.original_destination), (None, None));
    let mut begun = socket("10.77.0.2:8080", "10.0.0.9:5000", APP);
    begun.state = TCP_SYN_SENT;
    assert_eq!(one(begun.clone()).direction, Direction::Outbound);
    begun.state = TCP_SYN_RECV;
    assert_eq!(one(begun).direction, Direction::Inbound);
}

#[test]
fn a_listener_on_loopback_does_not_hide_the_capture() {
    let own = listeners(&[("127.0.0.1:80", PROXY), ("0.0.0.0:15006", PROXY)]);
    let sockets = [socket("10.77.0.2:80", "10.0.0.9:5000", PROXY)];
    let row = &explain(&sockets, &own, &POD, false)[0];
    assert_eq!((row.via, row.capture_port), (Via::Sidecar, Some(15006)));
}

#[test]
fn connections_of_the_proxy_have_no_record() {
    let known = |uid, has_connected| OpenSocket {
        has_connected,
        ..socket("10.77.0.2:4000", "10.1.0.8:443", uid)
    };
    let row = one(known(PROXY, Some(true)));
    assert_eq!(
        (row.direction, row.end, row.via),
        (Direction::Outbound, End::Connecting, Via::Direct)
    );
    assert_eq!(row.client, Some(at("10.77.0.2:4000")));
    assert_eq!(row.original_destination, Some(at("10.1.0.8:443")));
    assert_eq!(row.owner, Owner::Sidecar);
    // What others have connected before the pod was enrolled may be redirected by rules of iptables.
    for other in [
        known(APP, Some(true)),
        known(PROXY, Some(false)),
        known(PROXY, None),
    ] {
        assert_eq!(one(other).via, Via::Unknown);
    }
}
