//! Random routing tables: what sidetrack's rows say about a destination against what the kernel says.
//! Needs root. The tables are in a network namespace of the calling thread's own.

use std::{
    collections::HashMap,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::ControlFlow,
    process::{Command, Stdio},
};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use nix::sched::{CloneFlags, unshare};
use sidetrack_common::pod::{Route, RouteKind};
use sidetrack_datapath::{
    kernel::netlink,
    netns::routes::{MAX_ROUTES, RouteId, Snapshot},
};

/// Two interfaces, each with a network of both families.
const NETWORK: &str = "link set lo up\n\
    link add eth0 type veth peer name end0\n\
    link add eth1 type veth peer name end1\n\
    link set end0 up\n\
    link set end1 up\n\
    address add 10.0.0.2/24 dev eth0\n\
    address add 10.0.1.2/24 dev eth1\n\
    address add fd00::2/64 dev eth0 nodad\n\
    address add fd00:0:0:1::2/64 dev eth1 nodad\n\
    link set eth0 up\n\
    link set eth1 up\n";

/// What a route does, as `ip route` spells it; the most common one several times.
const ACTIONS: [&str; 16] = [
    "unicast {} dev eth0",
    "unicast {} dev eth1",
    "unicast {} dev eth0",
    "unicast {} via GATEWAY dev eth0",
    "unicast {} via GATEWAY dev eth0",
    "unicast {} dev lo",
    "local {} dev eth0",
    "local {} dev eth1",
    "local {} dev lo",
    "unreachable {}",
    "prohibit {}",
    "blackhole {}",
    "throw {}",
    "throw {}",
    "broadcast {} dev eth0",
    "unicast {} dev eth1",
];
const TABLES: [&str; 8] = [
    "main", "main", "main", "main", "local", "local", "default", "default",
];
/// Number of table default (linux/rtnetlink.h).
const RT_TABLE_DEFAULT: u8 = 253;
const V4_PREFIXES: [u8; 8] = [0, 8, 15, 22, 24, 25, 31, 32];
const V6_PREFIXES: [u8; 8] = [0, 16, 48, 63, 64, 120, 127, 128];

/// A namespace for tables, of the calling thread.
pub struct Tables {
    socket: Socket,
    /// Whether a route of table default counts although table main refuses the destination: so do older kernels for
    /// IPv4, such as 6.8.1, as long as no one has added a rule. sidetrack refuses.
    takes_refused: bool,
}

impl Tables {
    /// Makes it.
    ///
    /// # Panics
    /// Without root or iproute2.
    pub fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).expect("root, for a network namespace");
        ip(NETWORK);
        let mut tables = Self {
            socket: netlink::open(NETLINK_ROUTE).expect("a netlink socket"),
            takes_refused: false,
        };
        let batch = |verb: &str| {
            let refusal = "unreachable 192.0.2.0/24";
            format!("route {verb} {refusal}\nroute {verb} 192.0.2.0/24 dev eth0 table default\n")
        };
        ip(&batch("add"));
        let (refused, _) = tables.kernels(Ipv4Addr::new(192, 0, 2, 1).into());
        tables.takes_refused = !matches!(refused, Answer::Fails(_));
        ip(&batch("delete"));
        tables
    }

    /// Sets the tables that the input encodes, four bytes a route, and compares.
    ///
    /// # Panics
    /// If sidetrack and the kernel differ about a destination.
    pub fn check(&self, input: &[u8]) {
        let routes: Vec<[u8; 4]> = input
            .chunks_exact(4)
            .take(24)
            .filter_map(|bytes| bytes.try_into().ok())
            .collect();
        let lines: Vec<String> = routes.iter().map(line).collect();
        let batch = |verb: &str| -> String {
            let lines = lines.iter().map(|line| format!("route {verb} {line}\n"));
            lines.collect()
        };
        // Some are refused: two with one prefix and metric, or a gateway that is not on the link.
        ip(&batch("add"));
        let snapshot = Snapshot::read().expect("the tables");
        let rows = snapshot.rows(1, &[], None, MAX_ROUTES).rows;
        let mut compared = Ok(());
        for addr in destinations(&routes) {
            let ours = looked_up(&rows, addr);
            let (kernels, from_default) = self.kernels(addr);
            let is_excused = self.takes_refused && from_default && matches!(ours, Answer::Fails(_));
            if ours != kernels && !is_excused {
                compared = Err((addr, ours, kernels));
            }
        }
        ip(&batch("delete"));
        if let Err((addr, ours, kernels)) = compared {
            panic!("{addr}: rows say {ours:?}, the kernel {kernels:?}, of\n{lines:#?}");
        }
    }

    /// What `ip route get` prints, and whether the route is of table default.
    fn kernels(&self, addr: IpAddr) -> (Answer, bool) {
        let mut message = RouteMessage::default();
        let (family, length, destination) = match addr {
            IpAddr::V4(v4) => (AddressFamily::Inet, 32, RouteAddress::Inet(v4)),
            IpAddr::V6(v6) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(v6)),
        };
        message.header.address_family = family;
        message.header.destination_prefix_length = length;
        message
            .attributes
            .push(RouteAttribute::Destination(destination));
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        let payload = NetlinkPayload::InnerMessage(RouteNetlinkMessage::GetRoute(message));
        let mut request = NetlinkMessage::new(header, payload);
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0).expect("ask the kernel");
        let (answer, _) = self.socket.recv_from_full().expect("the kernel's answer");
        let mut kernels = None;
        let read = netlink::messages(&answer, |payload| {
            kernels = match payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                    let from_default = route.header.table == RT_TABLE_DEFAULT;
                    Some((answer_of(&route), from_default))
                }
                NetlinkPayload::Error(error) => {
                    let errno = error.to_io().raw_os_error().unwrap_or_default();
                    Some((Answer::Fails(errno), false))
                }
                _ => None,
            };
            Ok(ControlFlow::Break(()))
        });
        read.expect("a netlink message");
        kernels.expect("a route or an error")
    }
}

/// What becomes of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It is an address of the namespace.
    Local,
    /// It is reached by this source address, where it is certain.
    Leaves(Option<IpAddr>),
    /// TCP cannot use it.
    Group,
    /// The errno of connect.
    Fails(i32),
}

fn answer_of(route: &RouteMessage) -> Answer {
    match route.header.kind {
        RouteType::Local | RouteType::Anycast => Answer::Local,
        RouteType::Broadcast | RouteType::Multicast => Answer::Group,
        RouteType::Unicast => {
            let source = route
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
                    // For IPv6 the kernel picks the source by destination, the rows by route.
                    _ => None,
                });
            Answer::Leaves(source)
        }
        other => panic!("a route of kind {other:?}"),
    }
}

/// The row of the longest prefix.
fn looked_up(rows: &HashMap<RouteId, Route>, addr: IpAddr) -> Answer {
    let matching = rows
        .iter()
        .filter(|(id, _)| id.destination().contains(&addr))
        .max_by_key(|(id, _)| id.destination().prefix_len());
    let route = matching.map_or(Route::NONE, |(_, route)| *route);
    if route.is_local() {
        Answer::Local
    } else if route.kind == RouteKind::Group as u32 {
        Answer::Group
    } else if route.is_unicast() {
        let known = addr.is_ipv4() && !route.source.is_unspecified();
        Answer::Leaves(known.then(|| route.source.into()))
    } else {
        Answer::Fails(route.errno())
    }
}

/// A route as `ip route` takes it.
fn line(bytes: &[u8; 4]) -> String {
    let net = net(bytes);
    let gateway = if net.addr().is_ipv4() {
        "10.0.0.1"
    } else {
        "fd00::1"
    };
    let action = ACTIONS[usize::from(bytes[2] & 15)];
    let table = TABLES[usize::from(bytes[3] & 7)];
    let metric = match bytes[3] >> 3 & 3 {
        0 => String::new(),
        metric => format!(" metric {metric}"),
    };
    action
        .replace("{}", &net.to_string())
        .replace("GATEWAY", gateway)
        + " table "
        + table
        + &metric
}

/// A network; from few, so that they overlap.
fn net(bytes: &[u8; 4]) -> IpNet {
    let prefix = usize::from(bytes[1] & 7);
    let [high, low] = [bytes[0] >> 2 & 3, bytes[0] & 3];
    let (addr, length): (IpAddr, u8) = if bytes[1] & 8 == 0 {
        let last = [0, 1, 2, 130][usize::from(bytes[1] >> 4 & 3)];
        (
            Ipv4Addr::new(10, high, low, last).into(),
            V4_PREFIXES[prefix],
        )
    } else {
        let last = u16::from(bytes[1] >> 4 & 3);
        let addr = Ipv6Addr::new(0xfd00, u16::from(high), 0, u16::from(low), 0, 0, 0, last);
        (addr.into(), V6_PREFIXES[prefix])
    };
    IpNet::new_assert(addr, length).trunc()
}

/// Addresses in and beside the networks of the routes, and of the namespace.
fn destinations(routes: &[[u8; 4]]) -> Vec<IpAddr> {
    let fixed = [
        "10.0.0.2",
        "10.0.0.7",
        "10.0.0.255",
        "10.0.1.9",
        "10.9.9.9",
        "127.0.0.1",
        "127.80.1.1",
        "192.0.2.1",
        "fd00::2",
        "fd00::7",
        "fd00:0:0:1::9",
        "2001:db8::1",
        "::1",
    ];
    let mut all: Vec<IpAddr> = fixed.iter().filter_map(|text| text.parse().ok()).collect();
    for bytes in routes {
        let net = net(bytes);
        all.extend([net.network(), net.broadcast()].into_iter().filter(usable));
        let supernet = net.supernet().map(|net| net.broadcast());
        all.extend(supernet.into_iter().filter(usable));
    }
    all
}

/// Destinations of another kind are not looked up: connect refuses them or takes them for another.
fn usable(addr: &IpAddr) -> bool {
    let limited = *addr == IpAddr::V4(Ipv4Addr::BROADCAST);
    !addr.is_multicast() && !addr.is_unspecified() && !limited && first_v4_octet(*addr) != 0
}

fn first_v4_octet(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(v4) => v4.octets()[0],
        IpAddr::V6(_) => 1,
    }
}

/// Runs lines of `ip`, and continues after those that fail.
fn ip(batch: &str) {
    let mut child = Command::new("ip")
        .args(["-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run ip");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(batch.as_bytes()).expect("write to ip");
    drop(stdin);
    child.wait().expect("wait for ip");
}
