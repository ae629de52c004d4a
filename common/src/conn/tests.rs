use std::{collections::BTreeSet, vec::Vec};

use super::HandshakeKey;
use crate::addr::Addr;

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
            let taken = used.iter().filter(|count| **count > 0).count();
            assert!(taken > 2300, "{clients} clients use {taken} slots");
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
