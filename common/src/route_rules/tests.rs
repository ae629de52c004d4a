use super::{MAX_SELECTORS, RouteSelector, RoutedSocket, view};
use crate::addr::Addr;

const NETWORK: Addr = Addr::v4([10, 9, 0, 0]);
const MASK: Addr = Addr::from_v6_be([0, 0, 0, 0xffff_0000_u32.to_be()]);

fn from_network() -> RouteSelector {
    RouteSelector {
        source: Addr::from_v6_be([0, 0, 0, NETWORK.to_v4_be()]),
        source_mask: MASK,
        ..RouteSelector::ALWAYS
    }
}

fn seen_by(selector: RouteSelector, socket: RoutedSocket) -> u32 {
    let mut selectors = [RouteSelector::NEVER; MAX_SELECTORS];
    selectors[2] = selector;
    view(&selectors, &socket, |number| number)
}

const SOCKET: RoutedSocket = RoutedSocket {
    source: Addr::v4([10, 9, 3, 4]),
    mark: 0x12,
    uid: 1000,
};

#[test]
fn a_view_has_the_bit_of_each_selector_that_matches() {
    assert_eq!(seen_by(RouteSelector::ALWAYS, SOCKET), 0b100);
    assert_eq!(seen_by(RouteSelector::NEVER, SOCKET), 0);
    let all = [RouteSelector::ALWAYS; MAX_SELECTORS];
    assert_eq!(view(&all, &SOCKET, |number| number), 0b1111);
}

#[test]
fn sources_match_by_prefix() {
    assert_eq!(seen_by(from_network(), SOCKET), 0b100);
    for source in [
        Addr::UNSPECIFIED,
        Addr::v4([0, 0, 0, 0]),
        Addr::v4([10, 10, 3, 4]),
    ] {
        assert_eq!(
            seen_by(from_network(), RoutedSocket { source, ..SOCKET }),
            0
        );
    }
    let v6 = Addr::from_v6_be([1, 2, 3, 4]);
    let exactly = RouteSelector {
        source: v6,
        source_mask: Addr::from_v6_be([u32::MAX; 4]),
        ..RouteSelector::ALWAYS
    };
    let with = |source| seen_by(exactly, RoutedSocket { source, ..SOCKET });
    assert_eq!(with(v6), 0b100);
    for word in 0..4 {
        let mut words = v6.to_v6_be();
        words[word] ^= 0x8000;
        assert_eq!(with(Addr::from_v6_be(words)), 0, "word {word}");
    }
}

#[test]
fn marks_match_by_their_bits() {
    let selector = |mark, mark_mask| RouteSelector {
        mark,
        mark_mask,
        ..RouteSelector::ALWAYS
    };
    assert_eq!(seen_by(selector(0x12, u32::MAX), SOCKET), 0b100);
    assert_eq!(seen_by(selector(0x10, 0xf0), SOCKET), 0b100);
    assert_eq!(seen_by(selector(0x13, u32::MAX), SOCKET), 0);
    assert_eq!(seen_by(selector(0x8000_0000, 0x8000_0000), SOCKET), 0);
}

#[test]
fn users_match_from_the_first_to_the_last() {
    let selector = |first_uid, last_uid| RouteSelector {
        first_uid,
        last_uid,
        ..RouteSelector::ALWAYS
    };
    for (first, last, bit) in [
        (1000, 1000, 0b100),
        (0, 1000, 0b100),
        (1000, u32::MAX, 0b100),
        (0, 999, 0),
        (1001, u32::MAX, 0),
    ] {
        assert_eq!(
            seen_by(selector(first, last), SOCKET),
            bit,
            "{first}-{last}"
        );
    }
    let root = RoutedSocket { uid: 0, ..SOCKET };
    assert_eq!(seen_by(selector(0, 0), root), 0b100);
    let none = RoutedSocket {
        uid: u32::MAX,
        ..SOCKET
    };
    assert_eq!(seen_by(selector(0, 1000), none), 0);
}
