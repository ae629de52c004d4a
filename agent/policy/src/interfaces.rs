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
    if entry == WILDCARD {
        return String::new();
    }
    format!("{flag} {entry} ")
}

/// The pattern that matches every interface.
const WILDCARD: &str = "+";

fn matches(entry: &str, interface: &str) -> bool {
    match entry.strip_suffix('+') {
        Some(prefix) => interface.starts_with(prefix),
        None => entry == interface,
    }
}

#[cfg(test)]
mod tests;
