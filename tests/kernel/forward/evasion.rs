//! What machines, outsiders and the pod itself may try so that packets pass the sidecar.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{command::run, product::Netns, sidecar, wait::eventually};
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendto, socket},
};
use std::os::fd::AsRawFd as _;

use super::{
    WAIT_TIMEOUT, check,
    fixture::{Forwarding, MACHINE, SERVICE},
};
use crate::fixture::ip;

const TCP: u8 = 6;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// A tag of VLAN 0 with priority 3, without the type of what follows.
const PRIORITY_TAG: [u8; 4] = [0x81, 0x00, 0x60, 0x00];
/// A destination header that is empty, before TCP.
const OPTIONS: [u8; 8] = [TCP, 0, 1, 4, 0, 0, 0, 0];
const HOP_LIMIT: u8 = 64;

fn octets(address: &str) -> Vec<u8> {
    match ip(address) {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded + (folded >> 16)) as u16)).to_be_bytes()
}

/// A SYN of the machine to the service's port 80, with so many bytes of data.
fn syn(from: &[u8], to: &[u8], port: u16, data: usize) -> Vec<u8> {
    let mut segment = vec![0; 20 + data];
    segment[0..2].copy_from_slice(&port.to_be_bytes());
    segment[2..4].copy_from_slice(&80_u16.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = 2;
    segment[14] = 0x20;
    let [high, low] = (segment.len() as u16).to_be_bytes();
    let pseudo = [from, to, &[0, TCP, high, low], &segment].concat();
    segment[16..18].copy_from_slice(&checksum(&pseudo));
    segment
}

/// An IPv4 packet.
fn v4(from: &[u8], to: &[u8], segment: &[u8]) -> Vec<u8> {
    let len = (20 + segment.len()) as u16;
    let mut header = vec![0x45, 0];
    header.extend(len.to_be_bytes());
    header.extend([0, 0, 0, 0, HOP_LIMIT, TCP, 0, 0]);
    header.extend(from);
    header.extend(to);
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    [&header, segment].concat()
}

/// An IPv6 packet; `next` is the first header of its content.
fn v6(from: &[u8], to: &[u8], next: u8, content: &[u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((content.len() as u16).to_be_bytes());
    header.extend([next, HOP_LIMIT]);
    header.extend(from);
    header.extend(to);
    [&header, content].concat()
}

/// An Ethernet address of an interface.
fn mac(netns: &str, interface: &str) -> Result<Vec<u8>> {
    let shown = run(&format!("ip -n {netns} -j link show {interface}"))?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    let text = shown[0]["address"].as_str().context("an address")?;
    let bytes = text.split(':').map(|part| u8::from_str_radix(part, 16));
    Ok(bytes.collect::<Result<_, _>>()?)
}

/// Sends a packet from the machine to the pod, behind these tags, as no socket of it would.
fn send(pod: &Forwarding, tags: &[[u8; 4]], family: usize, packet: &[u8]) -> Result<()> {
    let kind: [u8; 2] = [[0x08, 0x00], [0x86, 0xdd]][family];
    let mut frame = mac(&pod.fixture.pod.netns, "tap0")?;
    frame.extend(mac(&pod.inside.netns, "eth0")?);
    frame.extend(tags.concat());
    frame.extend(kind);
    frame.extend(packet);
    let netns = Netns::open(Path::new(&pod.inside.path()))?;
    netns.run(|| -> Result<()> {
        let interfaces = getifaddrs()?.filter(|it| it.interface_name == "eth0");
        let mut links = interfaces.filter_map(|it| it.address?.as_link_addr().copied());
        let link = links.next().context("the machine's interface")?;
        let raw = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::empty(),
            None,
        )?;
        sendto(raw.as_raw_fd(), &frame, &link, MsgFlags::empty())?;
        Ok(())
    })?
}

/// Segments that the outside has received.
fn arrived(pod: &Forwarding) -> Result<u64> {
    let outside = &pod.fixture.lab.outside().netns;
    let shown = run(&format!("ip netns exec {outside} cat /proc/net/snmp"))?;
    let lines: Vec<&str> = shown.lines().filter(|it| it.starts_with("Tcp:")).collect();
    let [names, values] = lines[..] else {
        anyhow::bail!("{shown}");
    };
    let mut pairs = names.split(' ').zip(values.split(' '));
    let value = pairs.find(|(name, _)| *name == "InSegs");
    Ok(value.context("InSegs")?.1.parse()?)
}

/// Connections that the rule for all inbound ports has captured.
fn captured(pod: &Forwarding, family: usize) -> Result<u64> {
    let flag = [&[][..], &["-6"]][family];
    let words = [&["rules", "test/app", "-o", "json"], flag].concat();
    let rows = pod.fixture.agent.places.json(&words)?;
    let rows = rows.as_array().context("a list of rules")?;
    let all = rows.iter().filter(|row| row["name"] == "in-all");
    Ok(all.filter_map(|row| row["connections"].as_u64()).sum())
}

fn forwarding() -> Result<Forwarding> {
    let pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    Ok(pod)
}

kernel_test!(packets_that_are_hard_to_read_are_captured);
/// Behind a tag that only gives a priority, and behind IPv6 headers, all of which the kernel takes off.
fn packets_that_are_hard_to_read_are_captured() -> Result<()> {
    let pod = forwarding()?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    pod.fixture.enroll(&[])?;
    pod.wait_programs(2)?;
    // The pod and the machine have each other's address from here on.
    for family in [0, 1] {
        let (machine, service) = (MACHINE[family], SERVICE[family]);
        check(pod.leave(ip(service), 80)?, 15006, machine, service, 80)?;
    }
    // Of large frames the kernel keeps only the Ethernet header where programs can read it at once.
    for (netns, interface) in [
        (&pod.inside.netns, "eth0"),
        (&pod.fixture.pod.netns, "tap0"),
    ] {
        run(&format!("ip -n {netns} link set {interface} mtu 9000"))?;
    }
    let machine = MACHINE.map(octets);
    let service = SERVICE.map(octets);
    let of_v4 = |port: u16, data: usize| {
        let segment = syn(&machine[0], &service[0], port, data);
        v4(&machine[0], &service[0], &segment)
    };
    let of_v6 = |port: u16| syn(&machine[1], &service[1], port, 0);
    let plain_v6 = |next: u8, content: &[u8]| v6(&machine[1], &service[1], next, content);
    let fragment = |next: u8| [next, 0, 0, 0, 0, 0, 0, 1];
    let tagged = &[PRIORITY_TAG][..];
    let behind = [&fragment(DESTINATION), &OPTIONS[..], &of_v6(4004)].concat();
    let cases = [
        ("IPv4", &[][..], 0, of_v4(4000, 0)),
        ("IPv4, with headers in a page", &[], 0, of_v4(4006, 4200)),
        ("IPv4 with a priority", tagged, 0, of_v4(4001, 0)),
        (
            "IPv6 with a priority",
            tagged,
            1,
            plain_v6(TCP, &of_v6(4001)),
        ),
        (
            "IPv6, options",
            &[],
            1,
            plain_v6(DESTINATION, &[&OPTIONS[..], &of_v6(4002)].concat()),
        ),
        (
            "IPv6, a fragment that is whole",
            &[],
            1,
            plain_v6(FRAGMENT, &[&fragment(TCP)[..], &of_v6(4003)].concat()),
        ),
        (
            "IPv6, options in a fragment",
            &[],
            1,
            plain_v6(FRAGMENT, &behind),
        ),
    ];
    for (what, tags, family, packet) in cases {
        let (before, outside) = (captured(&pod, family)?, arrived(&pod)?);
        send(&pod, tags, family, &packet)?;
        eventually(WAIT_TIMEOUT, || {
            ensure!(
                captured(&pod, family)? == before + 1,
                "{what}: not captured"
            );
            Ok(())
        })?;
        ensure!(arrived(&pod)? == outside, "{what}: it has passed");
    }
    // Which headers are behind a second tag the program cannot see.
    let outside = arrived(&pod)?;
    send(&pod, &[PRIORITY_TAG; 2], 0, &of_v4(4005, 0))?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(arrived(&pod)? == outside, "it has passed");
    Ok(())
}

kernel_test!(a_translated_destination_passes_no_sidecar);
/// The pod itself translates a port of its own to one of the machine, as container engines in it do.
fn a_translated_destination_passes_no_sidecar() -> Result<()> {
    const EXCLUDED: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
    let pod = forwarding()?;
    let netns = &pod.fixture.pod.netns;
    for port in [8080, 8081] {
        run(&format!(
            "ip netns exec {netns} iptables -t nat -A PREROUTING -p tcp --dport {port} -j DNAT --to-destination {}:80",
            MACHINE[0]
        ))?;
    }
    let own = ip("10.77.0.2");
    let reached = pod.enter(own, 8080)?;
    ensure!(
        reached.is_ok_and(|it| it.accepted_by == 80),
        "without sidetrack"
    );
    pod.fixture.enroll(&[(EXCLUDED, "8081")])?;
    pod.wait_programs(2)?;
    let down = pod.enter(own, 8080)?;
    ensure!(
        down.as_ref().err() == Some(&libc::ECONNREFUSED),
        "without a sidecar: {down:?}"
    );
    let _sidecar = sidecar::start_workers(&pod.fixture.pod, &[80], 2)?;
    let captured = pod.enter(own, 8080)?;
    ensure!(captured.is_err(), "past the sidecar: {captured:?}");
    let excluded = pod.enter(own, 8081)?;
    ensure!(
        excluded.as_ref().is_ok_and(|it| it.accepted_by == 80),
        "excluded: {excluded:?}"
    );
    // Ports that are not translated are as they were.
    let plain = pod.enter(own, 80)?;
    ensure!(
        plain.as_ref().is_ok_and(|it| it.accepted_by == 15006),
        "{plain:?}"
    );
    Ok(())
}
