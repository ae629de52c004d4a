//! Addresses agree with std's, in every form the kernel uses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Addr, Family};

/// Edges of the ranges the rules know, and one address beside each edge.
const V4: [[u8; 4]; 18] = [
    [0, 0, 0, 0],
    [0, 0, 0, 1],
    [1, 0, 0, 0],
    [10, 0, 0, 2],
    [126, 255, 255, 255],
    [127, 0, 0, 0],
    [127, 0, 0, 1],
    [127, 0, 0, 6],
    [127, 255, 255, 255],
    [128, 0, 0, 0],
    [223, 255, 255, 255],
    [224, 0, 0, 0],
    [239, 255, 255, 255],
    [240, 0, 0, 1],
    [244, 0, 0, 1],
    [255, 0, 0, 1],
    [255, 255, 255, 254],
    [255, 255, 255, 255],
];

/// The same for IPv6. Words that repeat or overlap are there because comparisons combine words.
const V6: [[u16; 8]; 24] = [
    [0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 1],
    [0, 0, 0, 0, 0, 0, 0, 2],
    [0, 0, 0, 0, 0, 0, 0, 6],
    [0, 0, 0, 0, 0, 0, 1, 0],
    [0, 0, 0, 0, 0, 0, 0x7f00, 1],
    // v4-compatible, not v4-mapped.
    [0, 0, 0, 0, 0, 1, 0x7f00, 1],
    [0, 0, 0, 0, 1, 0xffff, 0x7f00, 1],
    [0, 0, 0, 0, 0xffff, 0xffff, 0, 0],
    [0, 0, 0, 1, 0, 0xffff, 0x7f00, 1],
    [0, 0, 0, 1, 0, 0xfffe, 0x7f00, 1],
    [0, 1, 0, 0, 0, 0xffff, 0x7f00, 1],
    [0, 1, 0, 1, 0, 0xffff, 0x7f00, 1],
    [0, 1, 0, 1, 0, 0, 0, 0],
    [0, 1, 0, 0, 0, 0, 0, 1],
    [0, 0, 0, 1, 0, 0, 0, 1],
    [0, 1, 0, 1, 0, 0, 0, 1],
    [0, 0, 0, 0, 0, 1, 0, 0],
    [1, 0, 0, 0, 0, 0, 0, 0],
    [0xfd00, 0, 0, 0, 0, 0, 0, 2],
    [0xfe80, 0, 0, 0, 0, 0, 0, 1],
    [0xfeff, 0xffff, 0, 0, 0, 0, 0, 1],
    [0xff00, 0, 0, 0, 0, 0, 0, 0],
    [0xff02, 0, 0, 0, 0, 0, 0, 1],
];

/// Every address of both lists as the sockets see it: an IPv4 address plain and v4-mapped.
fn ips() -> Vec<IpAddr> {
    let v4 = V4.map(Ipv4Addr::from);
    v4.iter()
        .map(|ip| IpAddr::from(*ip))
        .chain(v4.iter().map(|ip| IpAddr::from(ip.to_ipv6_mapped())))
        .chain(V6.map(|segments| IpAddr::from(Ipv6Addr::from(segments))))
        .collect()
}

#[test]
fn std_addresses_come_back_in_canonical_form() {
    for ip in ips() {
        let addr = Addr::from(ip);
        assert_eq!(IpAddr::from(addr), ip.to_canonical());
        assert_eq!(addr.to_string(), ip.to_canonical().to_string());
        assert_eq!(format!("{addr:?}"), ip.to_canonical().to_string());
    }
}

#[test]
fn octets_are_those_of_the_v4_mapped_address() {
    for ip in ips() {
        let wide = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let addr = Addr::from(ip);
        assert_eq!(addr.octets(), wide.octets());
        assert_eq!(Addr::v6(addr.octets()), addr);
    }
}

/// The kernel's structs hold an address as words whose bytes in memory are in network order.
#[test]
fn words_of_the_kernel_come_back() {
    for ip in ips() {
        let addr = Addr::from(ip);
        let words = addr.to_v6_be();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes, addr.octets());
        assert_eq!(Addr::from_v6_be(words), addr);
    }
    for octets in V4 {
        let be = u32::from_ne_bytes(octets);
        assert_eq!(Addr::from_v4_be(be), Addr::v4(octets));
        assert_eq!(Addr::v4(octets).to_v4_be(), be);
    }
}

#[test]
fn the_rules_of_ipv4_hold_for_v4_mapped_addresses_too() {
    for ip in ips() {
        let expected = if ip.to_canonical().is_ipv4() {
            Family::V4
        } else {
            Family::V6
        };
        assert_eq!(Addr::from(ip).family(), expected, "{ip}");
    }
}

#[test]
fn properties_are_those_of_std() {
    for ip in ips() {
        let (addr, canonical) = (Addr::from(ip), ip.to_canonical());
        assert_eq!(addr.is_unspecified(), canonical.is_unspecified(), "{ip}");
        assert_eq!(addr.is_loopback(), canonical.is_loopback(), "{ip}");
        let broadcast = matches!(canonical, IpAddr::V4(v4) if v4.is_broadcast());
        assert_eq!(
            addr.is_multicast_or_broadcast(),
            canonical.is_multicast() || broadcast,
            "{ip}"
        );
    }
}

#[test]
fn an_address_is_itself_and_no_other() {
    let ips = ips();
    for a in &ips {
        for b in &ips {
            let same = a.to_canonical() == b.to_canonical();
            assert_eq!(Addr::from(*a).is(Addr::from(*b)), same, "{a} {b}");
        }
    }
}

/// A comparison that combined the words wrongly would take differences in two places for none.
#[test]
fn addresses_that_differ_in_any_bits_are_not_the_same() {
    let base = Addr::from(IpAddr::from([10, 0, 0, 2])).octets();
    for first in 0..128 {
        for second in 0..128 {
            let mut octets = base;
            octets[first / 8] ^= 1 << (first % 8);
            octets[second / 8] ^= 1 << (second % 8);
            let (a, b) = (Addr::v6(base), Addr::v6(octets));
            assert_eq!(a.is(b), first == second, "bits {first} and {second}");
        }
    }
}

#[test]
fn constants_are_the_addresses_they_are_named_after() {
    let parse = |text: &str| Addr::from(text.parse::<IpAddr>().expect("an address"));
    assert_eq!(Addr::UNSPECIFIED, parse("::"));
    assert_eq!(Addr::LOOPBACK_V4, parse("127.0.0.1"));
    assert_eq!(Addr::LOOPBACK_V6, parse("::1"));
    assert_eq!(Addr::SELF_V4, parse("127.0.0.6"));
    assert_eq!(Addr::SELF_V6, parse("::6"));
}

#[test]
fn redirects_stay_in_their_family() {
    for family in [Family::V4, Family::V6] {
        let target = Addr::loopback_of(family);
        assert_eq!(target.family(), family);
        assert!(target.is_loopback());
    }
}

#[test]
fn an_address_without_known_value_is_the_same() {
    let full = IpAddr::from(Ipv6Addr::from([0xf7; 16]));
    for addr in ips().into_iter().chain([full]).map(Addr::from) {
        assert_eq!(addr.any(0), addr);
        assert_eq!(addr.of_any_family(0), addr);
    }
}

#[test]
fn only_two_third_words_are_unspecified() {
    let with = |third: u32, last: u32| Addr::from_v6_be([0, 0, third.to_be(), last]);
    for third in 0..=0x1_ffff_u32 {
        let is_one = third == 0 || third == 0xffff;
        assert_eq!(with(third, 0).is_unspecified(), is_one, "{third:x}");
        assert!(!with(third, 1).is_unspecified(), "{third:x}");
        let high = third << 15;
        assert_eq!(with(high, 0).is_unspecified(), high == 0, "{high:x}");
    }
}

#[test]
fn either_field_by_family() {
    let v6 = [1, 2, 3, 4];
    assert_eq!(Addr::of_family(10, 9, v6), Addr::from_v6_be(v6));
    assert_eq!(Addr::of_family(2, 9, v6), Addr::from_v4_be(9));
}

#[test]
fn the_source_of_an_ipv6_socket_in_ipv4() {
    let (v4, v6) = (Addr::v4([10, 0, 0, 1]), Addr::v6([0xfd; 16]));
    let any_v4 = Addr::v4([0; 4]);
    for (bound, to, source) in [
        (v6, v4, Addr::SELF_V4),
        (Addr::LOOPBACK_V6, v4, Addr::SELF_V4),
        (v6, v6, v6),
        (v4, v4, v4),
        (any_v4, v4, any_v4),
        (Addr::UNSPECIFIED, v4, Addr::UNSPECIFIED),
        (Addr::UNSPECIFIED, v6, Addr::UNSPECIFIED),
    ] {
        assert_eq!(bound.as_source_to(to, 0), source, "{bound} to {to}");
    }
}
