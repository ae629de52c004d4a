//! Policies: each accepted one can be compiled, printed as rules and read back. The property test
//! `rule_text` compares the decision with the rules.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use sidetrack_common::{addr::Family, dns::DNS_PORT, policy::List, rule::Rule};
use sidetrack_policy::{
    InboundPorts, Inputs, OutboundRanges, Policy, PolicyError, Span, facts::PodFacts,
    policy::DNS_CAPTURE_PORT, record, rules,
};

use super::{
    outline,
    rule_text::netfilter::{Fate, Hook, Nat, Packet},
};

/// Checks one input: a pod as `outline.rs` describes it.
pub fn check(input: &[u8]) {
    let pod = outline::pod(&String::from_utf8_lossy(input));
    match policy_of(&pod) {
        Ok(policy) => {
            check_lengths(&pod, &policy);
            check_policy(&policy, &addresses(&pod));
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                assert!(!error.to_string().contains(char::is_control), "{error}");
            }
        }
    }
}

fn policy_of(pod: &PodFacts) -> Result<Policy, Vec<PolicyError>> {
    Policy::of_pod(pod, &Inputs::default())
}

fn addresses(pod: &PodFacts) -> Vec<IpAddr> {
    pod.status.pod_ips.iter().collect()
}

/// Checks an accepted policy, in a pod with the given addresses.
pub fn check_policy(policy: &Policy, own: &[IpAddr]) {
    for port in [
        policy.outbound_port,
        policy.inbound_port,
        policy.tunnel_port,
    ] {
        assert_ne!(port, 0, "{policy:?}");
    }
    for list in [
        inbound_ports(policy),
        &policy.included_outbound_ports,
        &policy.excluded_outbound_ports,
    ] {
        let is_valid = |ports: &Span| ports.first <= ports.last && ports.last <= 65_535;
        assert!(list.iter().all(is_valid), "{policy:?}");
    }
    check_rows(policy);
    let json = serde_json::to_string(policy).expect("a policy can be written");
    let again: Policy = serde_json::from_str(&json).expect("and read");
    assert_eq!(&again, policy, "{json}");
    for family in [Family::V4, Family::V6] {
        check_lines(policy, family);
        let text = rules::restore(policy, family);
        // In mode TPROXY table mangle comes first.
        let nat = text.find("*nat").map_or("", |at| &text[at..]);
        let nat = Nat::parse(nat).unwrap_or_else(|problem| panic!("{problem}\n{text}"));
        for packet in packets(policy, own, family) {
            let outcome = nat.walk(&packet);
            let outcome = outcome.unwrap_or_else(|problem| panic!("{problem}\n{text}"));
            if let Fate::Redirected(port) = outcome.fate {
                let of_tcp = [policy.outbound_port, policy.inbound_port];
                let is_expected = match (packet.port, packet.udp) {
                    (DNS_PORT, true) => port == DNS_CAPTURE_PORT,
                    (DNS_PORT, false) => port == DNS_CAPTURE_PORT || of_tcp.contains(&port),
                    _ => of_tcp.contains(&port),
                };
                assert!(is_expected, "{outcome:?}\n{text}");
            }
        }
    }
}

/// Some packet in each direction, so that every chain is walked.
fn packets(policy: &Policy, own: &[IpAddr], family: Family) -> Vec<Packet> {
    let v6 = family == Family::V6;
    let (here, there): (IpAddr, IpAddr) = if v6 {
        (
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7).into(),
            Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 31).into(),
        )
    } else {
        (
            Ipv4Addr::new(10, 244, 1, 7).into(),
            Ipv4Addr::new(10, 109, 118, 31).into(),
        )
    };
    let here = own
        .iter()
        .find(|ip| ip.is_ipv6() == v6)
        .copied()
        .unwrap_or(here);
    let output = |output: &str, owner| Hook::Output {
        output: output.to_owned(),
        owner,
    };
    let input = "eth0".to_owned();
    let proxy = policy
        .proxy_uids
        .first()
        .copied()
        .zip(policy.proxy_gids.first().copied());
    [
        (output("eth0", Some((1000, 1000))), here, there),
        (output("eth0", proxy), here, there),
        (output("lo", proxy), here, here),
        (output("lo", None), here, here),
        (Hook::Prerouting { input }, there, here),
    ]
    .into_iter()
    .flat_map(|(hook, source, destination)| {
        [(80, false), (DNS_PORT, false), (DNS_PORT, true)].map(|(port, udp)| Packet {
            hook: hook.clone(),
            source,
            destination,
            port,
            udp,
            mark: 0,
        })
    })
    .collect()
}

/// A list is in the kernel's row exactly if it has entries.
fn check_rows(policy: &Policy) {
    let row = policy.compile().row();
    let groups = policy.included_groups.as_deref().unwrap_or_default();
    for (list, len) in [
        (List::OutPortExcluded, policy.excluded_outbound_ports.len()),
        (List::OutPortIncluded, policy.included_outbound_ports.len()),
        (List::InPort, inbound_ports(policy).len()),
        (List::RangeExcluded, policy.excluded_ranges.len()),
        (List::RangeIncluded, included_ranges(policy)),
        (List::GroupIncluded, groups.len()),
        (List::GroupExcluded, policy.excluded_groups.len()),
    ] {
        // A list with a range of ports is one of numbers.
        let of_numbers = match list {
            List::OutPortExcluded => row.has(List::OutPortRangeExcluded),
            List::InPort => row.has(List::InPortRangeExcluded),
            _ => false,
        };
        let has = row.has(list) || of_numbers;
        assert_eq!(has, len > 0, "{list:?} of {policy:?}");
    }
}

/// Every entry of every list has its line.
fn check_lines(policy: &Policy, family: Family) {
    let mut by_rule: BTreeMap<u32, usize> = BTreeMap::new();
    for line in rules::all(policy, family) {
        if let Some((rule, _)) = line.decision {
            *by_rule.entry(rule as u32).or_default() += 1;
        }
    }
    let v6 = family == Family::V6;
    let of_family = |ranges: &[ipnet::IpNet]| {
        let mine = ranges.iter().filter(|range| range.addr().is_ipv6() == v6);
        mine.count()
    };
    let included = match &policy.outbound {
        OutboundRanges::All => 0,
        OutboundRanges::Only(ranges) => of_family(ranges),
    };
    for (rule, len) in [
        (Rule::OutPortExcluded, policy.excluded_outbound_ports.len()),
        (Rule::OutPortIncluded, policy.included_outbound_ports.len()),
        (Rule::OutInterface, policy.excluded_interfaces.len()),
        (Rule::InInterface, policy.excluded_interfaces.len()),
        (Rule::RangeExcluded, of_family(&policy.excluded_ranges)),
        (Rule::RangeIncluded, included),
        (Rule::ProxyUid, policy.proxy_uids.len()),
        (Rule::ProxyGid, policy.proxy_gids.len()),
        (Rule::GroupExcluded, policy.excluded_groups.len()),
    ] {
        let found = by_rule.get(&(rule as u32)).copied().unwrap_or_default();
        assert_eq!(found, len, "{rule:?} of {policy:?}");
    }
}

/// Lists that only an annotation can have set are as long as written.
fn check_lengths(pod: &PodFacts, policy: &Policy) {
    let annotations = &pod.meta.annotations;
    if pod.istio_init().is_some() || annotations.get(record::ANNOTATION).is_some() {
        return;
    }
    let written = |name: &str| {
        let name = format!("traffic.sidecar.istio.io/{name}");
        let value = annotations.get(&name)?;
        let items = value.split(',').filter(|item| !item.trim().is_empty());
        Some(items.count())
    };
    for (name, len) in [
        ("excludeOutboundPorts", policy.excluded_outbound_ports.len()),
        ("includeOutboundPorts", policy.included_outbound_ports.len()),
        ("excludeOutboundIPRanges", policy.excluded_ranges.len()),
        ("excludeInterfaces", policy.excluded_interfaces.len()),
    ] {
        // istio-cni excludes one of its own where the annotation is absent.
        let of_cni = usize::from(name == "excludeOutboundPorts");
        assert_eq!(written(name).unwrap_or(of_cni), len, "{name} of {policy:?}");
    }
}

pub(super) fn inbound_ports(policy: &Policy) -> &[Span] {
    match &policy.inbound {
        InboundPorts::None => &[],
        InboundPorts::AllExcept(ports) | InboundPorts::Only(ports) => ports,
    }
}

fn included_ranges(policy: &Policy) -> usize {
    match &policy.outbound {
        OutboundRanges::All => 0,
        OutboundRanges::Only(ranges) => ranges.len(),
    }
}
