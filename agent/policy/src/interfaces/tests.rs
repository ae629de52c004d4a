use super::{matches, option, position};

/// As iptables 1.8.9 matched real interfaces of these names, legacy and nft alike.
#[test]
fn patterns_match_as_in_iptables() {
    const NAMES: [&str; 12] = [
        "net",
        "net1",
        "net+",
        "net+x",
        "a+b",
        "abcdefghijklmno",
        "net*",
        "+",
        "+a",
        "ne",
        "aXb",
        "NET1",
    ];
    for (entry, matched) in [
        ("net+", ["net", "net1", "net+", "net+x", "net*"].as_slice()),
        ("net++", &["net+", "net+x"]),
        ("+", &NAMES),
        ("a+b", &["a+b"]),
        ("+a", &["+a"]),
        ("abcdefghijklmn+", &["abcdefghijklmno"]),
        ("net*", &["net*"]),
        ("net", &["net"]),
    ] {
        for name in NAMES {
            assert_eq!(
                matches(entry, name),
                matched.contains(&name),
                "{entry} {name}"
            );
        }
    }
}

#[test]
fn the_first_entry_that_matches_decides() {
    let entries = ["net1", "net+", "+", "eth0"].map(str::to_owned);
    for (name, expected) in [("net1", 0), ("net2", 1), ("eth0", 2)] {
        assert_eq!(position(&entries, name), Some(expected), "{name}");
    }
    assert_eq!(position(&entries[..2], "eth0"), None);
}

#[test]
fn every_interface_needs_no_option() {
    assert_eq!(option("-i", "net+"), "-i net+ ");
    assert_eq!(option("-o", "+"), "");
}
