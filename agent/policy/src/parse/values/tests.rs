//! Single values at their boundaries.

use super::{before_sidecar, boolean, id, interface, loopback, mode, port, port_or_zero, range};
use crate::policy::Mode;

#[test]
fn ports() {
    for (text, expected) in [
        ("1", Some(1)),
        ("65535", Some(65535)),
        ("0", None),
        ("65536", None),
        ("-1", None),
        ("", None),
        ("http", None),
    ] {
        assert_eq!(port(text).ok(), expected, "{text:?}");
        let or_zero = if text == "0" { Some(0) } else { expected };
        assert_eq!(port_or_zero(text).ok(), or_zero, "{text:?}");
    }
    let error = port("http").unwrap_err();
    assert_eq!(
        error,
        "\"http\" is not a port; write a number from 1 to 65535"
    );
}

/// The largest number means "no owner" to the kernel programs.
#[test]
fn ids() {
    for (text, expected) in [
        ("0", Some(0)),
        ("1337", Some(1337)),
        ("4294967294", Some(u32::MAX - 1)),
        ("4294967295", None),
        ("-1", None),
        ("envoy", None),
    ] {
        assert_eq!(id(text).ok(), expected, "{text:?}");
    }
    assert!(
        id("envoy")
            .unwrap_err()
            .contains("write a number such as 1337")
    );
}

#[test]
fn words() {
    assert_eq!(mode("REDIRECT"), Ok(Mode::Redirect));
    assert_eq!(mode("TPROXY"), Ok(Mode::Tproxy));
    assert_eq!(mode("NONE"), Ok(Mode::None));
    assert_eq!(mode("none").unwrap_err(), "write REDIRECT, TPROXY or NONE");
    assert_eq!(before_sidecar("passthrough"), Ok(true));
    assert_eq!(before_sidecar("refuse"), Ok(false));
    assert_eq!(
        before_sidecar("").unwrap_err(),
        "write passthrough or refuse"
    );
    for yes in ["1", "t", "T", "true", "TRUE", "True"] {
        assert_eq!(boolean(yes), Ok(true), "{yes}");
    }
    for no in ["", "0", "f", "F", "false", "FALSE", "False"] {
        assert_eq!(boolean(no), Ok(false), "{no}");
    }
    assert_eq!(boolean("yes").unwrap_err(), "write true or false");
}

#[test]
fn ranges() {
    for (text, expected) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.1.2.3/8"),
        ("10.1.2.3", "10.1.2.3/32"),
        ("2001:db8::1", "2001:db8::1/128"),
        ("::/0", "::/0"),
    ] {
        let found = range(text).map(|net| net.to_string());
        assert_eq!(found.as_deref(), Ok(expected), "{text}");
    }
    for (text, expected) in [
        ("*", "write CIDRs such as"),
        ("10.0.0.0/33", "is not a CIDR"),
        ("web", "is not a CIDR"),
        ("::ffff:10.0.0.0/104", "write it as a.b.c.d/n"),
        ("::ffff:10.0.0.1", "write it as a.b.c.d/n"),
    ] {
        let error = range(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn loopback_ranges() {
    for (text, valid) in [
        ("127.0.0.1/32", true),
        ("127.0.0.0/8", true),
        ("127.255.0.0/16", true),
        ("127.0.0.0/7", false),
        ("10.0.0.0/8", false),
        ("127.0.0.1", false),
        ("::1/128", false),
    ] {
        assert_eq!(loopback(text).is_ok(), valid, "{text}");
    }
}

/// Each rule about names by a name that breaks only that one.
#[test]
fn interface_names() {
    for valid in [
        "eth0",
        "fifteen-bytes-1",
        "a.b",
        "...",
        "!a",
        "a+b",
        "eth+",
        "+",
        "fourteen-bytes+",
    ] {
        assert_eq!(interface(valid).as_deref(), Ok(valid));
    }
    for bad in [
        "sixteen-bytes-12",
        "fifteen-bytes-1+",
        ".",
        "..",
        "a/b",
        "a:b",
        "a b",
        "!",
        "a\u{7}",
        "a\"",
        "a'",
        "a\\",
    ] {
        let error = interface(bad).unwrap_err();
        assert!(
            error.contains("is not an interface name"),
            "{bad:?}: {error}"
        );
    }
}
