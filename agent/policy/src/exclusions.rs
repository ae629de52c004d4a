//! Ranges of ports, and what meshes other than Istio leave alone: by user with port and protocol, by destination ahead of
//! all other rules, by ranges of ports, and by sender.

use std::{fmt, str::FromStr};

use ipnet::{IpNet, Ipv4Subnets};
use serde::{Deserialize, Serialize, Serializer};
/// What a rule with several ports has room for: `XT_MULTI_PORTS` in linux/netfilter/xt_multiport.h.
pub(crate) const MULTIPORT_SLOTS: usize = 15;

/// Ports or users from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "Written")]
pub struct Span {
    /// The first.
    pub first: u32,
    /// The last, which is not smaller.
    pub last: u32,
}

impl Span {
    /// All ports that a rule can name.
    pub const ALL_PORTS: Self = Self {
        first: 1,
        last: u16::MAX as u32,
    };

    /// One number.
    #[must_use]
    pub const fn one(number: u32) -> Self {
        Self {
            first: number,
            last: number,
        }
    }

    /// Whether a number is in it.
    #[must_use]
    pub const fn contains(self, number: u32) -> bool {
        self.first <= number && number <= self.last
    }

    /// Whether it is one number.
    #[must_use]
    pub const fn is_one(self) -> bool {
        self.first == self.last
    }

    /// What remains of it without a number: before that, and after it.
    pub(crate) fn without(self, number: u32) -> [Option<Self>; 2] {
        if !self.contains(number) {
            return [Some(self), None];
        }
        let before = number.checked_sub(1).filter(|last| self.first <= *last);
        let after = number.checked_add(1).filter(|first| *first <= self.last);
        [
            before.map(|last| Self { last, ..self }),
            after.map(|first| Self { first, ..self }),
        ]
    }

    /// As iptables has it, with this between both ends.
    pub(crate) fn text(self, between: char) -> String {
        match self.is_one() {
            true => self.first.to_string(),
            false => format!("{}{between}{}", self.first, self.last),
        }
    }

    /// What the slots of iptables' match `multiport` take of its fifteen.
    pub(crate) const fn slots(self) -> usize {
        if self.is_one() { 1 } else { 2 }
    }
}

/// Ports as entries of a list that may have ranges.
#[must_use]
pub fn spans(ports: impl IntoIterator<Item = u16>) -> Vec<Span> {
    ports.into_iter().map(Span::from).collect()
}

/// Whether a list has a range. If so, it cannot be one of plain ports.
pub(crate) fn is_ranged(entries: &[Span]) -> bool {
    entries.iter().any(|entry| !entry.is_one())
}

impl From<u16> for Span {
    fn from(port: u16) -> Self {
        Self::one(port.into())
    }
}

impl PartialEq<u16> for Span {
    fn eq(&self, port: &u16) -> bool {
        *self == Self::from(*port)
    }
}

impl FromStr for Span {
    type Err = String;

    /// `80`, `8000-9000`, or `8000:9000` as iptables has it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once(['-', ':']).unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self { first, last }),
            _ => Err("write a number such as 80, or a range such as 8000-9000".to_owned()),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text('-'))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A span in a document: a number, or the text of a range.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u32),
    Text(String),
}

impl TryFrom<Written> for Span {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        match written {
            Written::Number(number) => Ok(Self::one(number)),
            Written::Text(text) => text.parse(),
        }
    }
}

/// Writes ports of Istio's and Kuma's lists, in which one port is a number.
pub(crate) fn as_numbers<S: Serializer>(ports: &[Span], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ports.iter().map(|port| match port.is_one() {
        true => Written::Number(port.first),
        false => Written::Text(port.to_string()),
    }))
}

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Connections that are not redirected because of their owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerExclusion {
    /// Users, in the pod's numbering.
    pub users: Span,
    /// The protocol; `None` for all connections that rules see.
    pub protocol: Option<Protocol>,
    /// Ports; empty for all.
    pub ports: Vec<Span>,
}

/// What only meshes other than Istio can leave alone, each list in the order of its rules. All of it is empty in Istio's
/// dialects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exclusions {
    /// By user, at most [`OWNER_ENTRIES`](sidetrack_common::policy::OWNER_ENTRIES).
    pub owners: Vec<OwnerExclusion>,
    /// By destination, ahead of all other rules.
    pub destinations: Vec<IpNet>,
    /// By outbound port.
    pub outbound_ports: Vec<Span>,
    /// By inbound port.
    pub inbound_ports: Vec<Span>,
    /// By sender.
    pub sources: Vec<IpNet>,
    /// Everything outbound but queries that a rule for UDP captures.
    pub outbound_off: bool,
    /// Whether the rules for outbound connections come before the one that leaves queries over TCP alone.
    pub captures_dns_over_tcp: bool,
    /// Whether no rule keeps queries in zones of their own: what is captured is the same.
    pub dns_in_one_zone: bool,
}

impl Exclusions {
    /// How many entries its lists have.
    pub(crate) fn entries(&self) -> usize {
        self.owners.len()
            + self.destinations.len()
            + self.outbound_ports.len()
            + self.inbound_ports.len()
            + self.sources.len()
    }

    /// Whether nothing is excluded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Spans, and the value for numbers that are in one of them.
pub(crate) type Valued = Vec<(Span, u32)>;

/// What the values of all spans that hold a number come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    /// Their bits together.
    Bits,
    /// The smallest.
    First,
}

impl Fold {
    /// The value for a number, if a span holds it.
    pub(crate) fn value(self, valued: &[(Span, u32)], number: u32) -> Option<u32> {
        let holding = valued.iter().filter(|(span, _)| span.contains(number));
        let values = holding.map(|(_, value)| *value);
        match self {
            Self::Bits => values.reduce(|all, bits| all | bits),
            Self::First => values.min(),
        }
    }

    /// The same for all numbers, as ranges of IPv4 addresses that do not overlap.
    pub(crate) fn ranges(self, valued: &[(Span, u32)]) -> Vec<(IpNet, u32)> {
        // A number's value can change only where a span begins or ends.
        let mut starts: Vec<u32> = valued
            .iter()
            .flat_map(|(span, _)| [Some(span.first), span.last.checked_add(1)])
            .flatten()
            .collect();
        starts.sort_unstable();
        starts.dedup();
        let ends = starts.iter().skip(1).map(|next| next - 1).chain([u32::MAX]);
        let parts = starts.iter().copied().zip(ends);
        parts
            .filter_map(|(first, last)| Some((first, last, self.value(valued, first)?)))
            .flat_map(|(first, last, value)| {
                let subnets = Ipv4Subnets::new(first.into(), last.into(), 0);
                subnets.map(move |subnet| (IpNet::V4(subnet), value))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
