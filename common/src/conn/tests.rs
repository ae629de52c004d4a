use std::{collections::BTreeSet, vec::Vec};

use super::{
    AskedFrom, Destination, DestinationKey, HandshakeKey, HandshakeReason, Meaning, Role,
    SockRecord,
};
use crate::{addr::Addr, target::Target};

const SEED: u64 = 0x0123_4567_89ab_cdef;

const fn key(netns: u64, host: u8, client_port: u16) -> HandshakeKey {
    HandshakeKey {
        netns,
        client: Addr::v4([10, 0, 0, host]),
        client_port,
        target_port: 80,
        target_word: 0,
    }
}

#[test]
fn hashes_of_neighbors_differ_in_both_halves() {
    for (clients, ports) in [(1, 30_000..34_096), (64, 30_000..30_064)] {
        let hashes: Vec<u64> = (0..clients)
            .flat_map(|host| {
                ports
                    .clone()
                    .map(move |port| key(4711, host, port).hash(SEED))
            })
            .collect();
        for shift in [0, 32] {
            const SLOTS: usize = 4096;
            let mut used = [0_u32; SLOTS];
            for hash in &hashes {
                used[(hash >> shift) as usize % SLOTS] += 1;
            }
            // At random about 63 % of the slots are used, and none more than nine times.
            let in_use = used.iter().filter(|count| **count > 0).count();
            assert!(in_use > 2300, "{clients} clients use {in_use} slots");
            assert!(used.iter().all(|count| *count < 12), "{clients} clients");
        }
    }
}

#[test]
fn keys_with_something_else_have_another_hash() {
    let plain = key(4711, 1, 30_000);
    let others = [
        HandshakeKey {
            netns: 4712,
            ..plain
        },
        HandshakeKey {
            client: Addr::v4([10, 0, 0, 2]),
            ..plain
        },
        HandshakeKey {
            client: Addr::from_v6_be([0xfd, 0, 0, 1]),
            ..plain
        },
        HandshakeKey {
            client_port: 30_001,
            ..plain
        },
        HandshakeKey {
            target_port: 81,
            ..plain
        },
        HandshakeKey {
            target_word: 1,
            ..plain
        },
        // Differences that cancel in an exclusive or, of each part with the next one.
        key(4710, 0, 30_000),
        HandshakeKey {
            netns: 4710,
            client: Addr::from_v6_be([
                0,
                1,
                plain.client.to_v6_be()[2],
                plain.client.to_v6_be()[3],
            ]),
            ..plain
        },
    ];
    let hashes: BTreeSet<u64> = others
        .iter()
        .chain([&plain])
        .map(|key| key.hash(SEED))
        .collect();
    assert_eq!(hashes.len(), others.len() + 1);
}

#[test]
fn what_a_record_means() {
    use Meaning::{Application, Assigned, Direct, Sidecar, Stale, Translated};
    // By role: with the ports of the record's connection, and with another own or peer port.
    for (role, same, other_own, other_peer) in [
        (Role::Dialed, Application, Application, Stale),
        (Role::Accepted, Sidecar, Stale, Sidecar),
        (Role::Direct, Direct, Direct, Translated),
        (Role::Assigned, Assigned, Assigned, Stale),
    ] {
        let record = SockRecord {
            addr: Addr::v4([10, 1, 0, 8]),
            source: Addr::UNSPECIFIED,
            port: 443,
            role: role as u16,
            capture_port: 15001,
            target_port: 443,
        };
        assert_eq!(record.meaning(443, 443), same, "{role:?}");
        assert_eq!(record.meaning(4000, 443), other_own, "{role:?}");
        assert_eq!(record.meaning(443, 4000), other_peer, "{role:?}");
        assert_eq!(record.meaning(443, 0), Stale, "{role:?} is not connected");
    }
}

#[test]
fn keys_are_the_same_if_every_part_is() {
    let one = HandshakeKey::new(7, (Addr::v4([10, 0, 0, 1]), 4000), (Addr::LOOPBACK_V4, 80));
    for (netns, client, client_port, target, target_port) in [
        (8, [10, 0, 0, 1], 4000, Addr::LOOPBACK_V4, 80),
        (7, [10, 0, 0, 2], 4000, Addr::LOOPBACK_V4, 80),
        (7, [10, 0, 0, 1], 4001, Addr::LOOPBACK_V4, 80),
        (7, [10, 0, 0, 1], 4000, Addr::SELF_V4, 80),
        (7, [10, 0, 0, 1], 4000, Addr::LOOPBACK_V4, 81),
    ] {
        let client = (Addr::v4(client), client_port);
        let other = HandshakeKey::new(netns, client, (target, target_port));
        assert!(!one.is(&other) && one != other, "{other:?}");
        assert!(other.is(&other));
    }
    let target = |addr, port| Target { addr, port };
    let words = |changed: &[usize]| {
        let mut words = Addr::LOOPBACK_V4.to_v6_be();
        changed.iter().for_each(|&word| words[word] ^= 1);
        Addr::from_v6_be(words)
    };
    let one = DestinationKey::new(7, target(Addr::LOOPBACK_V4, 80));
    for other in [
        DestinationKey::new(8, target(Addr::LOOPBACK_V4, 80)),
        DestinationKey::new(7, target(Addr::SELF_V4, 80)),
        DestinationKey::new(7, target(Addr::LOOPBACK_V4, 81)),
        // The words of an IPv6 target.
        DestinationKey::new(7, target(words(&[2]), 80)),
        DestinationKey::new(7, target(words(&[3]), 80)),
        DestinationKey::new(7, target(words(&[2, 3]), 80)),
    ] {
        assert!(!one.is(&other) && one != other, "{other:?}");
        assert!(other.is(&other));
    }
}

#[test]
fn a_destination_is_for_connections_with_its_names() {
    let (dialed, source) = (Addr::v4([10, 1, 0, 8]), Addr::v4([10, 77, 0, 2]));
    let other = Addr::v4([10, 9, 9, 9]);
    let destination = Destination {
        dialed,
        source,
        dialed_port: 443,
        asked_from: 0,
        retired: 0,
    };
    for (dialed, port, source, bound, expected) in [
        (dialed, 443, source, false, true),
        (dialed, 443, source, true, true),
        (dialed, 443, other, false, false),
        (dialed, 443, other, true, true),
        (other, 443, source, false, false),
        (other, 443, source, true, false),
        (dialed, 80, source, false, false),
        (dialed, 80, source, true, false),
    ] {
        let is_for = destination.is_for(dialed, port, source, bound);
        assert_eq!(is_for, expected, "{dialed:?} {port} {source:?} {bound}");
    }
}

#[test]
fn answers_go_to_where_a_server_was_asked_from() {
    let source = Addr::v4([10, 77, 0, 2]);
    let targets = [
        Target::dedicated((Addr::v4([10, 96, 0, 10]), 53), 15053, 0, 1).addr,
        Target::dedicated((Addr::v6([0xfd; 16]), 53), 15053, 0, 1).addr,
    ];
    for target in targets {
        for (asked_from, wanted) in [
            (AskedFrom::Loopback, Addr::loopback_of(target.family())),
            (AskedFrom::Source, source),
            (AskedFrom::Target, target),
        ] {
            let destination = Destination {
                dialed: Addr::v4([10, 96, 0, 10]),
                source,
                dialed_port: 53,
                asked_from: asked_from as u16,
                retired: 0,
            };
            assert_eq!(destination.asked_from(target), wanted);
        }
    }
}

/// The words of a key are put together from parts that have no bit in common, so a change in any bit of any part is
/// seen.
#[test]
fn every_bit_of_a_key_changes_its_hash() {
    let plain = key(4711, 1, 30_000);
    let client = u128::from_be_bytes(plain.client.octets());
    let mut hashes = BTreeSet::from([plain.hash(SEED)]);
    let mut count = 1;
    let mut add = |key: HandshakeKey| {
        hashes.insert(key.hash(SEED));
        count += 1;
    };
    for bit in 0..128 {
        add(HandshakeKey {
            client: Addr::v6((client ^ 1 << bit).to_be_bytes()),
            ..plain
        });
    }
    for bit in 0..64 {
        add(HandshakeKey {
            netns: plain.netns ^ 1 << bit,
            ..plain
        });
    }
    for bit in 0..32 {
        add(HandshakeKey {
            target_word: plain.target_word ^ 1 << bit,
            ..plain
        });
    }
    for bit in 0..16 {
        add(HandshakeKey {
            client_port: plain.client_port ^ 1 << bit,
            ..plain
        });
        add(HandshakeKey {
            target_port: plain.target_port ^ 1 << bit,
            ..plain
        });
    }
    assert_eq!(hashes.len(), count);
}

#[test]
fn reasons_of_handshakes_are_numbered_in_order_and_have_names_of_their_own() {
    let names: BTreeSet<&str> = HandshakeReason::ALL
        .into_iter()
        .map(|(_, name)| name)
        .collect();
    assert_eq!(names.len(), HandshakeReason::ALL.len());
    for (index, (reason, _)) in HandshakeReason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, index);
    }
}
