//! Lists of interfaces (`-c`, `-k`): names, and patterns as iptables reads them.
//!
//! A `+` at the end of an entry stands for any rest of a name, the empty one included; `+` alone matches every
//! interface. Elsewhere in an entry it is a character like any other.

/// The position of the first entry that matches an interface.
#[must_use]
pub fn position(entries: &[String], interface: &str) -> Option<usize> {
    entries.iter().position(|entry| matches(entry, interface))
}

/// An option of iptables for an entry and the space after it, as `iptables -S` prints them. It prints nothing
/// for an entry that matches every interface.
pub(crate) fn option(flag: &str, entry: &str) -> String {
    if entry == EVERY {
        return String::new();
    }
    format!("{flag} {entry} ")
}

/// The pattern that matches every interface.
const EVERY: &str = "+";

fn matches(entry: &str, interface: &str) -> bool {
    match entry.strip_suffix('+') {
        Some(prefix) => interface.starts_with(prefix),
        None => entry == interface,
    }
}

#[cfg(test)]
mod tests {
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
}
