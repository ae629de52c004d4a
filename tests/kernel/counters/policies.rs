//! Policies with more than one entry in each list, and a connection for every entry.

use sidetrack_common::{decide::virtual_index, rule::Rule};

/// How a connection is made.
#[derive(Debug)]
pub enum Way {
    /// From the pod, by a uid and gid, to an address and port.
    Out((u32, u32), &'static str, u16),
    /// From outside to a port of the pod.
    In(u16),
    /// The same by the pod's second interface.
    InByEth1(u16),
}

/// A connection and what decides it.
#[derive(Debug)]
pub struct Case {
    pub way: Way,
    pub rule: Rule,
    /// The position in the rule's list.
    pub index: u32,
    /// A part of the rule as `sidetrack rules` prints it. `None` where no rule matches.
    pub line: Option<&'static str>,
}

/// A policy by what istio-init is given.
pub struct TestPolicy {
    pub name: &'static str,
    pub arguments: &'static [&'static str],
    pub variables: &'static [(&'static str, &'static str)],
    pub cases: &'static [Case],
}

const fn out(
    (who, address, port): ((u32, u32), &'static str, u16),
    rule: Rule,
    index: u32,
    line: &'static str,
) -> Case {
    Case {
        way: Way::Out(who, address, port),
        rule,
        index,
        line: Some(line),
    }
}

const fn inbound(way: Way, rule: Rule, index: u32, line: &'static str) -> Case {
    Case {
        way,
        rule,
        index,
        line: Some(line),
    }
}

const fn unmatched(way: Way, rule: Rule) -> Case {
    Case {
        way,
        rule,
        index: 0,
        line: None,
    }
}

/// The app's uid and gid.
const APP: (u32, u32) = (1000, 1000);
/// The sidecar's.
const PROXY: (u32, u32) = (1337, 1337);
/// In no list.
const ELSEWHERE: &str = "10.109.122.1";
/// In the first included range.
const INCLUDED: &str = "10.109.118.31";

/// Every list has two entries. The second one shows that positions are counted.
pub const POLICIES: &[TestPolicy] = &[
    TestPolicy {
        name: "lists",
        arguments: &[
            "-u",
            "1337,1338",
            "-g",
            "1337,1339",
            "-i",
            "10.109.118.0/24,10.109.119.0/24",
            "-x",
            "10.109.120.0/24,10.109.121.0/24",
            "-o",
            "81,82",
            "-q",
            "91,92",
            "-b",
            "*",
            "-d",
            "8081,8082",
        ],
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2000,2001")],
        cases: LISTS,
    },
    TestPolicy {
        name: "interfaces and listed ports",
        arguments: &["-u", "1337", "-i", "*", "-b", "80,8083", "-c", "eth9,eth1"],
        variables: &[],
        cases: INTERFACES,
    },
    TestPolicy {
        name: "virtual interfaces",
        arguments: &[
            "-u",
            "1337",
            "-i",
            "10.9.0.0/16,10.78.0.0/24",
            "-k",
            "eth9,eth1",
        ],
        variables: &[],
        cases: VIRTUAL,
    },
];

const LISTS: &[Case] = &[
    out(
        (APP, INCLUDED, 80),
        Rule::RangeIncluded,
        0,
        "-d 10.109.118.0/24",
    ),
    out(
        (APP, "10.109.119.1", 80),
        Rule::RangeIncluded,
        1,
        "-d 10.109.119.0/24",
    ),
    out(
        (APP, "10.109.120.1", 80),
        Rule::RangeExcluded,
        0,
        "-d 10.109.120.0/24",
    ),
    out(
        (APP, "10.109.121.1", 80),
        Rule::RangeExcluded,
        1,
        "-d 10.109.121.0/24",
    ),
    out((APP, INCLUDED, 81), Rule::OutPortExcluded, 0, "--dport 81"),
    out((APP, INCLUDED, 82), Rule::OutPortExcluded, 1, "--dport 82"),
    out((APP, ELSEWHERE, 91), Rule::OutPortIncluded, 0, "--dport 91"),
    out((APP, ELSEWHERE, 92), Rule::OutPortIncluded, 1, "--dport 92"),
    out(
        (PROXY, INCLUDED, 80),
        Rule::ProxyUid,
        0,
        "--uid-owner 1337 -j RETURN",
    ),
    out(
        ((1338, 1338), INCLUDED, 80),
        Rule::ProxyUid,
        1,
        "--uid-owner 1338 -j RETURN",
    ),
    out(
        ((1000, 1337), INCLUDED, 80),
        Rule::ProxyGid,
        0,
        "--gid-owner 1337 -j RETURN",
    ),
    out(
        ((1000, 1339), INCLUDED, 80),
        Rule::ProxyGid,
        1,
        "--gid-owner 1339 -j RETURN",
    ),
    out(
        ((1000, 2000), INCLUDED, 80),
        Rule::GroupExcluded,
        0,
        "--gid-owner 2000 -j RETURN",
    ),
    out(
        ((1000, 2001), INCLUDED, 80),
        Rule::GroupExcluded,
        1,
        "--gid-owner 2001 -j RETURN",
    ),
    out(
        (PROXY, "10.77.0.2", 80),
        Rule::ProxyUidLocal,
        0,
        "--uid-owner 1337 -j ISTIO_IN_REDIRECT",
    ),
    out(
        (APP, "10.77.0.2", 80),
        Rule::NotProxyUidLocal,
        0,
        "! --uid-owner 1337 -j RETURN",
    ),
    unmatched(Way::Out(APP, ELSEWHERE, 80), Rule::OutNoMatch),
    inbound(Way::In(8081), Rule::InPortExcluded, 0, "--dport 8081"),
    inbound(Way::In(8082), Rule::InPortExcluded, 1, "--dport 8082"),
    inbound(
        Way::In(80),
        Rule::AllInbound,
        0,
        "-p tcp -j ISTIO_IN_REDIRECT",
    ),
];

const INTERFACES: &[Case] = &[
    out(
        (APP, INCLUDED, 80),
        Rule::AllOutbound,
        0,
        "-j ISTIO_REDIRECT",
    ),
    out((APP, "10.78.0.254", 80), Rule::OutInterface, 1, "-o eth1"),
    inbound(Way::In(80), Rule::InPortIncluded, 0, "--dport 80 "),
    inbound(Way::In(8083), Rule::InPortIncluded, 1, "--dport 8083 "),
    unmatched(Way::In(8081), Rule::InNoMatch),
    inbound(Way::InByEth1(80), Rule::InInterface, 1, "-i eth1"),
];

const VIRTUAL: &[Case] = &[inbound(
    Way::InByEth1(80),
    Rule::VirtualInterface,
    virtual_index(1, 1),
    "-d 10.78.0.0/24 -i eth1",
)];
