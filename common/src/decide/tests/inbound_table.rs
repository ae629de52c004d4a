//! The inbound table of docs/semantics.md, row by row.

use super::{Fixture, POD, REMOTE, SECOND, VIP, port_of, syn_from, v6, with_exempt_ports};
use crate::{
    addr::Addr,
    decide::{Verdict, inbound, virtual_index},
    pod::{IfaceRow, IfaceRule},
    policy::{InboundMode, List, Policy},
    rule::Rule,
};

#[test]
fn inbound_table() {
    let (policy, tables) = with_exempt_ports();
    let decide = |port| inbound(&policy, &syn_from(REMOTE, port), &tables);
    assert_eq!(decide(15008).rule, Rule::TunnelPort);
    for port in [15020, 15021, 15090] {
        assert_eq!(decide(port).rule, Rule::InPortExcluded);
        assert_eq!(decide(port).verdict, Verdict::Untouched);
    }
    for port in [22, 80, 9999, 15001, 15006] {
        assert_eq!(port_of(decide(port)), 15006);
        assert_eq!(decide(port).rule, Rule::AllInbound);
    }
}

#[test]
fn the_pods_own_traffic_is_not_inbound() {
    let (policy, tables) = with_exempt_ports();
    for source in [
        Addr::SELF_V4,
        Addr::LOOPBACK_V4,
        Addr::LOOPBACK_V6,
        Addr::SELF_V6,
        POD,
        SECOND,
        v6(2),
    ] {
        let decision = inbound(&policy, &syn_from(source, 80), &tables);
        assert_eq!(decision.rule, Rule::LocalSource);
    }
}

#[test]
fn excluded_senders_are_untouched() {
    for list in [List::SourceExcluded, List::SourceExcludedLate] {
        let (mut policy, mut tables) = with_exempt_ports();
        tables.ranges = vec![(list, Addr::v4([10, 0, 0, 8])), (list, REMOTE)];
        let decide = |policy: &Policy, source| inbound(policy, &syn_from(source, 80), &tables);
        assert_eq!(
            decide(&policy, REMOTE).rule,
            Rule::AllInbound,
            "it has no such list"
        );
        policy.lists |= list.bit();
        let decision = decide(&policy, REMOTE);
        assert_eq!(
            (decision.verdict, decision.rule),
            (Verdict::Untouched, Rule::SourceExcluded)
        );
        assert_eq!(decision.index, 1);
        assert_eq!(decide(&policy, VIP).rule, Rule::AllInbound);
    }
}

#[test]
fn inbound_modes() {
    let (mut policy, tables) = with_exempt_ports();
    policy.inbound = InboundMode::Off as u8;
    let off = inbound(&policy, &syn_from(REMOTE, 80), &tables);
    assert_eq!(off.rule, Rule::InboundOff);
    policy.inbound = InboundMode::Listed as u8;
    let listed = inbound(&policy, &syn_from(REMOTE, 15090), &tables);
    assert_eq!(
        (port_of(listed), listed.rule),
        (15006, Rule::InPortIncluded)
    );
    let other = inbound(&policy, &syn_from(REMOTE, 80), &tables);
    assert_eq!(other.rule, Rule::InNoMatch);
}

#[test]
fn inbound_interfaces() {
    let (mut policy, tables) = with_exempt_ports();
    let mut syn = syn_from(REMOTE, 80);
    syn.iface = IfaceRow::new(IfaceRule::Excluded, 0);
    assert_eq!(inbound(&policy, &syn, &tables).rule, Rule::InInterface);
    syn.iface = IfaceRow::new(IfaceRule::Virtual, 0);
    let captured = inbound(&policy, &syn, &tables);
    assert_eq!(
        (port_of(captured), captured.rule),
        (15001, Rule::VirtualInterface)
    );
    policy.outbound_all = 0;
    assert_eq!(
        inbound(&policy, &syn, &tables).rule,
        Rule::VirtualInterfaceNoMatch
    );
    syn.captured_family = false;
    assert_eq!(
        inbound(&policy, &syn, &tables).rule,
        Rule::FamilyNotCaptured
    );
}

/// The index of a virtual interface's rule names the line of its interface and range.
#[test]
fn each_virtual_interface_and_range_has_an_index_of_its_own() {
    const RANGES: u32 = 1 << 20;
    for interface in [0, 1, 2, 3, 4095] {
        for range in [0, 1, 2, 3, 0xa5a5, RANGES - 1] {
            assert_eq!(virtual_index(interface, range), interface * RANGES + range);
        }
        // A range beyond what fits must not change the interface.
        for range in [RANGES, RANGES + 5, u32::MAX] {
            assert_eq!(virtual_index(interface, range) / RANGES, interface);
        }
    }
}

#[test]
fn a_virtual_interface_is_captured_by_the_outbound_ranges() {
    let (mut policy, _) = with_exempt_ports();
    policy.outbound_all = 0;
    policy.lists |= List::RangeIncluded.bit();
    let mut syn = syn_from(REMOTE, 80);
    syn.iface = IfaceRow::new(IfaceRule::Virtual, 2);
    let included = Fixture {
        ranges: vec![(List::RangeIncluded, SECOND), (List::RangeIncluded, POD)],
        ..Fixture::default()
    };
    let captured = inbound(&policy, &syn, &included);
    assert_eq!(port_of(captured), policy.outbound_port);
    assert_eq!(
        (captured.rule, captured.index),
        (Rule::VirtualInterface, virtual_index(2, 1))
    );
    let direct = inbound(&policy, &syn, &Fixture::default());
    assert_eq!(direct.verdict, Verdict::Untouched);
    assert_eq!(
        (direct.rule, direct.index),
        (Rule::VirtualInterfaceNoMatch, 2)
    );
}
