//! The decision about an inbound connection: the nat PREROUTING rules, in their order.

use super::{Decision, Inbound, Tables, Verdict};
use crate::{
    addr::Addr,
    pod::IfaceRule,
    policy::{DIALECT_SSH_IN, DIALECT_TUNNEL_IN, InboundMode, List, Row},
    rule::Rule,
};

/// SSH, host order.
pub const SSH_PORT: u16 = 22;

/// [`Decision::index`] of [`Rule::VirtualInterface`]. That rule has a line for each pair of an
/// interface and a range, so the index holds the positions of both.
#[inline(always)]
#[must_use]
pub const fn virtual_index(interface: u32, range: u32) -> u32 {
    const RANGE_BITS: u32 = 20;
    interface << RANGE_BITS | range & ((1 << RANGE_BITS) - 1)
}

/// Decides a SYN that was delivered to the pod.
#[inline(always)]
#[must_use]
pub fn inbound(policy: impl Row, syn: &Inbound, tables: &impl Tables) -> Decision {
    // The ingress interface does not identify traffic over lo: for an address of the pod, sk_lookup
    // reports the interface that holds it. The source address does identify it, because the kernel
    // drops packets from outside with a source address of the pod.
    if syn.source.is_loopback() || tables.is_own(syn.source) {
        return Decision::untouched(Rule::LocalSource);
    }
    if !syn.captured_family {
        return Decision::untouched(Rule::FamilyNotCaptured);
    }
    let capture = |rule: Rule, index: u32| {
        let verdict = Verdict::Redirect {
            port: policy.outbound_port,
            source: Addr::UNSPECIFIED,
            dialed: syn.destination,
        };
        Decision::listed(verdict, rule, index)
    };
    let position = syn.iface.position;
    // 1
    if syn.iface.rule == IfaceRule::Virtual as u32 {
        let (rule, none) = (Rule::VirtualInterface, Rule::VirtualInterfaceNoMatch);
        if policy.outbound_all != 0 {
            return capture(rule, virtual_index(position, 0));
        }
        if policy.has(List::RangeIncluded)
            && let Some(range) = tables.range(List::RangeIncluded, syn.destination)
        {
            return capture(rule, virtual_index(position, range));
        }
        return Decision::listed(Verdict::Untouched, none, position);
    }
    // 2
    if syn.iface.rule == IfaceRule::Excluded as u32 {
        return Decision::listed(Verdict::Untouched, Rule::InInterface, position);
    }
    if let Some(decision) = by_source(policy, syn.source, tables, List::SourceExcluded) {
        return decision;
    }
    if policy.has(List::InPortRangeExcluded)
        && let Some(index) =
            tables.range(List::InPortRangeExcluded, Addr::number(u32::from(syn.port)))
    {
        return Decision::listed(Verdict::Untouched, Rule::InPortExcluded, index);
    }
    if let Some(decision) = by_source(policy, syn.source, tables, List::SourceExcludedLate) {
        return decision;
    }
    by_port(policy, syn.port, syn.destination, tables)
}

/// A rule for excluded senders.
#[inline(always)]
fn by_source(policy: impl Row, source: Addr, tables: &impl Tables, list: List) -> Option<Decision> {
    if policy.has(list)
        && let Some(index) = tables.range(list, source)
    {
        return Some(Decision::listed(
            Verdict::Untouched,
            Rule::SourceExcluded,
            index,
        ));
    }
    None
}

/// The rules for ports, which come last.
#[inline(always)]
pub(super) fn by_port(
    policy: impl Row,
    port: u16,
    destination: Addr,
    tables: &impl Tables,
) -> Decision {
    let capture = |rule: Rule, index: u32| {
        let verdict = Verdict::Redirect {
            port: policy.inbound_port,
            source: Addr::UNSPECIFIED,
            dialed: destination,
        };
        Decision::listed(verdict, rule, index)
    };
    // 3
    if policy.inbound == InboundMode::Off as u8 {
        return Decision::untouched(Rule::InboundOff);
    }
    // 4
    if port == policy.tunnel_port && policy.has_dialect(DIALECT_TUNNEL_IN) {
        return Decision::untouched(Rule::TunnelPort);
    }
    if port == SSH_PORT
        && policy.inbound == InboundMode::AllExcept as u8
        && policy.has_dialect(DIALECT_SSH_IN)
    {
        return Decision::untouched(Rule::SshPort);
    }
    let listed = if policy.has(List::InPort) {
        tables.port(List::InPort, port)
    } else {
        None
    };
    // 5
    if policy.inbound == InboundMode::AllExcept as u8 {
        return match listed {
            Some(index) => Decision::listed(Verdict::Untouched, Rule::InPortExcluded, index),
            None => capture(Rule::AllInbound, 0),
        };
    }
    // 6
    match listed {
        Some(index) => capture(Rule::InPortIncluded, index),
        None => Decision::untouched(Rule::InNoMatch),
    }
}
