//! Rules of policy routing, as far as they concern what a pod's own sockets send. They choose between tables by source, mark
//! and user, which the kernel programs see as well: each set of rules that apply is a view of the routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
};
use sidetrack_common::{
    addr::Addr,
    pod::RouteKind,
    route_rules::{MAX_SELECTORS, RouteSelector},
};
use sidetrack_policy::policy::ReturnRoute;

use super::flat_route::{FlatRoute, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN};

/// Rules of a namespace that are followed, beside those that every namespace has.
const MAX_RULES: usize = 16;

/// What a namespace's rules come to.
#[derive(Debug, Default)]
pub struct Rules {
    /// In the kernel's order.
    rules: Vec<Rule>,
    /// Whether there is one, for IPv4 and for IPv6, that is not followed.
    is_unclear: [bool; 2],
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub is_v6: bool,
    /// Which sockets it is for, and whether it is for all others.
    selector: (RouteSelector, bool),
    /// The destinations that it is for.
    pub within: Option<IpNet>,
    pub action: Action,
}

/// What a rule leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A table, without its routes of prefixes up to this length.
    Table { table: u32, suppressed: Option<u8> },
    /// An error, as such a route gives.
    Fail(FlatRoute),
}

/// How a rule is read.
enum Reading {
    /// It concerns no packet of the pod's own sockets.
    Irrelevant,
    Followed(Rule),
    /// It sees what the kernel programs do not.
    Unclear,
}

impl Rules {
    /// Adds a rule, in the kernel's order. `lo` is what the namespace calls it.
    pub(super) fn add(&mut self, message: &RuleMessage, lo: Option<&str>) {
        let is_v6 = message.header.family == AddressFamily::Inet6;
        match read(message, is_v6, lo) {
            Reading::Irrelevant => {}
            Reading::Followed(rule) if self.rules.len() < MAX_RULES + DEFAULT_RULES => {
                self.rules.push(rule);
            }
            Reading::Followed(_) | Reading::Unclear => self.is_unclear[usize::from(is_v6)] = true,
        }
    }

    /// Marks the rules of a family, or of both, as not followed.
    pub(super) fn set_unclear(&mut self, is_v6: Option<bool>) {
        let is_meant = |family| is_v6.is_none_or(|is_v6| is_v6 == family);
        for family in [false, true] {
            self.is_unclear[usize::from(family)] |= is_meant(family);
        }
    }

    /// Tables that rules lead to, beside those that every namespace has.
    pub(super) fn other_tables(&self) -> Vec<(bool, u32)> {
        let mut tables: Vec<(bool, u32)> = (self.rules.iter())
            .filter_map(|rule| match rule.action {
                Action::Table { table, .. } if !is_usual(table) => Some((rule.is_v6, table)),
                _ => None,
            })
            .collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// Whether a rule of this family is not followed.
    pub(super) fn is_unclear(&self, is_v6: bool) -> bool {
        self.is_unclear[usize::from(is_v6)]
    }

    /// The rules of a family, but for the one that leads to a pod's own return route.
    pub(super) fn followed(&self, is_v6: bool, but: Option<ReturnRoute>) -> Followed {
        let leads_back = |rule: &&Rule| but.is_some_and(|but| rule.is_return_route(but));
        let own = self.rules.iter().filter(|rule| rule.is_v6 == is_v6);
        let rules: Vec<Rule> = own.filter(|rule| !leads_back(rule)).cloned().collect();
        // Before the first rule is read, and for a namespace that has removed them all.
        if rules.iter().all(Rule::is_usual) || self.is_unclear(is_v6) {
            return Followed::usual(is_v6);
        }
        let mut selectors = Vec::new();
        let mut followed = Vec::new();
        for rule in rules {
            let (selector, is_inverted) = rule.selector;
            let bit = if selector == RouteSelector::ALWAYS && !is_inverted {
                None
            } else {
                let known = selectors.iter().position(|known| *known == selector);
                let at = known.unwrap_or_else(|| {
                    selectors.push(selector);
                    selectors.len() - 1
                });
                Some((at, is_inverted))
            };
            followed.push((bit, rule));
        }
        Followed {
            is_usual: false,
            selectors,
            rules: followed,
        }
    }
}

/// The rules of a family, with the selectors that choose between them.
#[derive(Debug)]
pub(super) struct Followed {
    /// Whether they are those that every namespace starts with.
    pub is_usual: bool,
    selectors: Vec<RouteSelector>,
    rules: Vec<(Option<(usize, bool)>, Rule)>,
}

impl Followed {
    /// The rules that every namespace starts with. IPv6 has none for table `default` (`fib6_rules_net_init`).
    pub(super) fn usual(is_v6: bool) -> Self {
        let tables = [TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT];
        let tables = if is_v6 { &tables[..2] } else { &tables[..] };
        let rule = |table: &u32| Rule {
            is_v6,
            selector: (RouteSelector::ALWAYS, false),
            within: None,
            action: Action::Table {
                table: *table,
                suppressed: None,
            },
        };
        Self {
            is_usual: true,
            selectors: Vec::new(),
            rules: tables.iter().map(|table| (None, rule(table))).collect(),
        }
    }

    /// The selectors, if there are no more than are followed.
    pub(super) fn selectors(&self) -> Option<[RouteSelector; MAX_SELECTORS]> {
        let mut all = [RouteSelector::NEVER; MAX_SELECTORS];
        all.get_mut(..self.selectors.len())?
            .copy_from_slice(&self.selectors);
        Some(all)
    }

    /// Every view that a socket may have.
    pub(super) fn views(&self) -> std::ops::Range<u32> {
        0..1 << self.selectors.len()
    }

    /// The rules that apply to the sockets of a view.
    pub(super) fn in_view(&self, view: u32) -> impl Iterator<Item = &Rule> {
        let applies = move |bit: &Option<(usize, bool)>| {
            bit.is_none_or(|(at, is_inverted)| (view >> at & 1 == 1) != is_inverted)
        };
        let rules = self.rules.iter().filter(move |(bit, _)| applies(bit));
        rules.map(|(_, rule)| rule)
    }
}

impl Rule {
    /// Whether every namespace starts with it.
    fn is_usual(&self) -> bool {
        let is_for_all = self.selector == (RouteSelector::ALWAYS, false) && self.within.is_none();
        let is_to_usual = matches!(
            self.action,
            Action::Table { table, suppressed: None } if is_usual(table)
        );
        is_for_all && is_to_usual
    }

    fn is_return_route(&self, route: ReturnRoute) -> bool {
        let selector = RouteSelector {
            mark: route.mark,
            mark_mask: u32::MAX,
            ..RouteSelector::ALWAYS
        };
        let action = Action::Table {
            table: route.table,
            suppressed: None,
        };
        self.selector == (selector, false) && self.within.is_none() && self.action == action
    }
}

/// How many rules a namespace starts with, of both families.
const DEFAULT_RULES: usize = 5;

const fn is_usual(table: u32) -> bool {
    matches!(table, TABLE_LOCAL | TABLE_MAIN | TABLE_DEFAULT)
}

fn read(message: &RuleMessage, is_v6: bool, lo: Option<&str>) -> Reading {
    let header = &message.header;
    let is_inverted = header.flags.contains(RuleFlags::Invert);
    let mut selector = RouteSelector::ALWAYS;
    let (mut mark, mut mark_mask) = (0, None);
    let mut table = u32::from(header.table);
    let (mut within, mut suppressed) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Source(source) => {
                let Some((source, mask)) = source_and_mask(*source, header.src_len) else {
                    return Reading::Unclear;
                };
                (selector.source, selector.source_mask) = (source, mask);
            }
            RuleAttribute::Destination(to) => {
                within = IpNet::new(*to, header.dst_len).ok().map(|net| net.trunc());
            }
            RuleAttribute::FwMark(value) => mark = *value,
            RuleAttribute::FwMask(mask) => mark_mask = Some(*mask),
            RuleAttribute::UidRange(range) => {
                (selector.first_uid, selector.last_uid) = (range.start, range.end);
            }
            RuleAttribute::SuppressPrefixLen(u32::MAX)
            | RuleAttribute::SuppressIfGroup(u32::MAX)
            | RuleAttribute::Priority(_)
            | RuleAttribute::Protocol(_)
            | RuleAttribute::L3MDev(false) => {}
            RuleAttribute::SuppressPrefixLen(length) => suppressed = u8::try_from(*length).ok(),
            // What the pod sends comes in by lo, as the kernel has it.
            RuleAttribute::Iifname(name) if Some(name.as_str()) == lo => {}
            // A socket that is bound to a device is not redirected as it is.
            RuleAttribute::Iifname(_) | RuleAttribute::Oifname(_) if !is_inverted => {
                return Reading::Irrelevant;
            }
            _ => return Reading::Unclear,
        }
    }
    let mask = mark_mask.unwrap_or(if mark == 0 { 0 } else { u32::MAX });
    (selector.mark, selector.mark_mask) = (mark & mask, mask);
    let lacks_destination = header.dst_len > 0 && within.is_none();
    let lacks_source = header.src_len > 0 && selector.source_mask.is_unspecified();
    if header.tos != 0 || lacks_destination || lacks_source || is_inverted && within.is_some() {
        return Reading::Unclear;
    }
    let failing = |kind| {
        let default: IpAddr = match is_v6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        Action::Fail(FlatRoute {
            destination: IpNet::new_assert(default, 0),
            table: 0,
            metric: 0,
            kind,
            ifindex: 0,
            other_hops: Vec::new(),
            gateway: None,
            preferred_source: None,
        })
    };
    let action = match header.action {
        RuleAction::ToTable => Action::Table { table, suppressed },
        // Other than a route of this kind (`fib4_rule_action`, `fib6_rule_action`): ENETUNREACH.
        RuleAction::Unreachable => failing(RouteKind::None),
        RuleAction::Prohibit => failing(RouteKind::Prohibit),
        RuleAction::Blackhole => failing(RouteKind::Blackhole),
        RuleAction::Nop => return Reading::Irrelevant,
        _ => return Reading::Unclear,
    };
    Reading::Followed(Rule {
        is_v6,
        selector: (selector, is_inverted),
        within,
        action,
    })
}

/// An address with the bits that count, and these bits; `None` for the address of another family.
fn source_and_mask(source: IpAddr, prefix: u8) -> Option<(Addr, Addr)> {
    let net = IpNet::new(source, prefix).ok()?.trunc();
    Some(match (net.addr(), net.netmask()) {
        // An unbound socket has no bits at all, also not those that say IPv4.
        (IpAddr::V4(source), IpAddr::V4(mask)) => {
            let last = |part: Ipv4Addr| Addr::from_v6_be([0, 0, 0, u32::from(part).to_be()]);
            (last(source), last(mask))
        }
        (source, mask) => (source.into(), mask.into()),
    })
}
