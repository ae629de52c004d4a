use std::{
    collections::HashSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::{
    Addr, DEDICATED, DEDICATED_ATTEMPTS, DEDICATED_V6, SHARED, Target, is_dedicated,
    is_dedicated_v6, is_shared,
};

const SEED: u64 = 0;

fn v4(n: u32) -> Addr {
    Addr::v4(Ipv4Addr::from(0x0a00_0000 | n).octets())
}

fn v6(n: u128) -> Addr {
    Addr::v6(Ipv6Addr::from(0xfd00 << 112 | n).octets())
}

#[test]
fn ipv4_targets_are_in_the_range_and_on_loopback() {
    let network = |addr: Addr| u32::from_be(addr.to_v4_be()) >> (32 - DEDICATED.1);
    let check = |target: Target, range: (Addr, u8)| {
        assert!(target.addr.is_loopback(), "{target:?}");
        assert_eq!(network(target.addr), network(range.0), "{target:?}");
        assert_eq!(is_dedicated(target.addr), range == DEDICATED, "{target:?}");
        assert_eq!(is_shared(target.addr), range == SHARED, "{target:?}");
        assert_eq!(target.port, 15001);
    };
    for n in 0..100_000 {
        check(Target::shared((v4(n), 80), 15001, 0, SEED), SHARED);
        let attempts = (0..DEDICATED_ATTEMPTS)
            .map(|attempt| Target::dedicated((v4(n), 80), 15001, attempt, SEED));
        let attempts: HashSet<Target> = attempts.collect();
        assert_eq!(attempts.len(), DEDICATED_ATTEMPTS as usize);
        attempts
            .into_iter()
            .for_each(|target| check(target, DEDICATED));
    }
    for other in [
        Addr::LOOPBACK_V4,
        Addr::LOOPBACK_V6,
        v4(1),
        v6(1),
        Addr::UNSPECIFIED,
    ] {
        assert!(!is_dedicated(other) && !is_shared(other), "{other}");
    }
}

#[test]
fn ipv6_clients_do_not_connect_to_themselves() {
    for n in 0..100_000 {
        let target = Target::shared((v6(n), 80), 15001, 0, SEED);
        assert!(target.addr.is(Addr::LOOPBACK_V6), "{target:?}");
        assert!((1..1024).contains(&target.port), "{target:?}");
        // The port that it would have if the client had another.
        let other = Target::shared((v6(n), 80), 15001, target.port, SEED);
        let bound = Target::shared((v6(n), 80), 15001, other.port, SEED);
        assert!(other.port != 0 && bound.port != 0 && bound.port != other.port);
    }
}

#[test]
fn neighboring_destinations_rarely_have_the_same_target() {
    let count = |targets: &mut dyn Iterator<Item = Target>| targets.collect::<HashSet<_>>().len();
    // Of 4,194,304 at random: 12 shared on average.
    let by_address = count(&mut (0..10_000).map(|n| Target::shared((v4(n), 80), 15001, 0, SEED)));
    let by_port = count(&mut (1..10_001).map(|n| Target::shared((v4(1), n), 15001, 0, SEED)));
    assert!(
        by_address > 9_950 && by_port > 9_950,
        "{by_address} {by_port}"
    );
    // Of 65,535: 740 shared on average.
    let by_address =
        count(&mut (0..10_000).map(|n| Target::shared((v6(n), 80), 15001, 5000, SEED)));
    let by_port = count(&mut (1..10_001).map(|n| Target::shared((v6(1), n), 15001, 5000, SEED)));
    assert!(
        by_address > 9_000 && by_port > 9_000,
        "{by_address} {by_port}"
    );
}

#[test]
fn every_word_of_a_destination_chooses_its_target() {
    for others in [0, u32::MAX] {
        for word in 0..4 {
            let targets: HashSet<Target> = (0..=255_u32)
                .map(|n| {
                    let mut words = [others; 4];
                    words[word] = n << 24 | n;
                    Target::dedicated((Addr::from_v6_be(words), 80), 15001, 0, SEED)
                })
                .collect();
            assert!(targets.len() > 250, "word {word} among {others:x}");
        }
    }
}

#[test]
fn ipv6_targets_are_in_their_prefix_and_differ_in_the_rest() {
    let first = DEDICATED_V6.0.octets();
    let mut seen = HashSet::new();
    for n in 0..100_000 {
        for attempt in 0..DEDICATED_ATTEMPTS {
            let target = Target::dedicated((v6(n), 80), 15001, attempt, SEED);
            let octets = target.addr.octets();
            assert_eq!(octets[..8], first[..8], "{target:?}");
            assert!(is_dedicated(target.addr) && is_dedicated_v6(target.addr));
            assert!(!is_shared(target.addr) && !target.addr.is_loopback());
            // No IPv4 target has these words, which are the key of its row.
            assert_ne!(octets[8..12], [0, 0, 0xff, 0xff], "{target:?}");
            assert_eq!(target.port, 15001);
            assert!(seen.insert(octets), "{target:?}");
        }
    }
    for port in 1..10_000 {
        let octets = Target::dedicated((v6(7), port), 15001, 0, SEED)
            .addr
            .octets();
        assert!(port == 80 || seen.insert(octets), "port {port}");
    }
    for outside in ["100::1", "100:0:0:2::1", "100:0:1:1::1", "101:0:0:1::1"] {
        let outside = outside.parse::<Ipv6Addr>().unwrap();
        let outside = Addr::v6(outside.octets());
        assert!(!is_dedicated(outside) && !is_dedicated_v6(outside));
    }
}

/// Two builds of the agent use the same rows, so a destination has the same target in both.
#[test]
fn a_destination_keeps_its_target() {
    let text = |target: Target| format!("{} {}", target.addr, target.port);
    for (dialed, dedicated, shared, bound) in [
        (
            v4(1),
            "127.69.13.209 15001",
            "127.166.214.88 15001",
            "127.157.44.48 15001",
        ),
        (
            v4(0x00ff_ffff),
            "127.66.188.24 15001",
            "127.164.132.159 15001",
            "127.167.165.32 15001",
        ),
        (
            v6(1),
            "100::1:4bdb:787b:ef4a:cbb 15001",
            "::1 677",
            "::1 15306",
        ),
        (
            v6(0x1234 << 64 | 7),
            "100::1:e18d:3fe:5429:d3cd 15001",
            "::1 1006",
            "::1 47878",
        ),
        (
            v6(u128::MAX >> 16),
            "100::1:fd2b:c034:eb12:f58 15001",
            "::1 290",
            "::1 29235",
        ),
    ] {
        assert_eq!(
            text(Target::dedicated((dialed, 443), 15001, 1, SEED)),
            dedicated
        );
        assert_eq!(text(Target::shared((dialed, 443), 15001, 0, SEED)), shared);
        assert_eq!(
            text(Target::shared((dialed, 80), 15001, 40_000, SEED)),
            bound
        );
    }
}

#[test]
fn nodes_have_other_targets_for_a_destination() {
    let seeds = 0..1000;
    let dedicated = |seed| Target::dedicated((v4(1), 443), 15001, 0, seed);
    let shared = |seed| Target::shared((v6(1), 443), 15001, 5000, seed);
    let differ = |targets: HashSet<Target>| targets.len() > 980;
    assert!(differ(seeds.clone().map(dedicated).collect()));
    assert!(differ(seeds.map(shared).collect()));
}

#[test]
fn both_words_of_the_prefix_count() {
    let mut words = DEDICATED_V6.0.to_v6_be();
    assert!(is_dedicated_v6(Addr::from_v6_be(words)));
    // The same bits in both.
    words[0] ^= 7;
    words[1] ^= 7;
    assert!(!is_dedicated_v6(Addr::from_v6_be(words)));
}
