use std::net::IpAddr;

use super::{DnsCapture, Policy};
use crate::dialect::Dialect;

fn policy(dialect: Dialect, dns: DnsCapture) -> Policy {
    Policy {
        dialect,
        dns,
        ..Policy::default()
    }
}

fn servers(text: &str) -> DnsCapture {
    let servers = text
        .split_whitespace()
        .map(|it| it.parse::<IpAddr>().unwrap());
    DnsCapture::Servers(Some(servers.collect()))
}

fn ranges(dialect: Dialect, dns: DnsCapture) -> String {
    let ranges = policy(dialect, dns).dns_ranges();
    ranges
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn servers_are_those_of_the_dialect() {
    let own = || servers("10.96.0.10 fd00::a");
    assert_eq!(ranges(Dialect::Current, own()), "10.96.0.10/32 fd00::a/128");
    assert_eq!(ranges(Dialect::V1_13, own()), "10.96.0.10/32 fd00::a/128");
    assert_eq!(ranges(Dialect::V1_8, own()), "0.0.0.0/0");
    assert_eq!(ranges(Dialect::V1_5, own()), "");
    assert_eq!(ranges(Dialect::Current, DnsCapture::All), "0.0.0.0/0 ::/0");
    // Until the file has been read nothing passes the sidecar.
    assert_eq!(
        ranges(Dialect::Current, DnsCapture::Servers(None)),
        "0.0.0.0/0 ::/0"
    );
    assert_eq!(ranges(Dialect::Current, servers("")), "");
    assert_eq!(ranges(Dialect::Current, DnsCapture::Off), "");
}

#[test]
fn notes_say_what_is_captured_and_why_not() {
    let notes = |dialect, dns| policy(dialect, dns).notes().join("; ");
    assert_eq!(
        notes(Dialect::Current, servers("10.96.0.10")),
        "its DNS queries to 10.96.0.10 (its resolv.conf) go to port 15053"
    );
    assert_eq!(
        notes(Dialect::Current, DnsCapture::All),
        "its DNS queries to any server go to port 15053"
    );
    assert!(notes(Dialect::Current, servers("")).contains("no server is known"));
    assert!(notes(Dialect::V1_5, DnsCapture::All).contains("dialect 1.5 have none"));
    assert_eq!(notes(Dialect::Current, DnsCapture::Off), "");
}
