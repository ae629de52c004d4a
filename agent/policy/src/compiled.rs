//! A policy as the rows the kernel reads: one fixed row, and a row per list entry.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use sidetrack_common::{
    dns::{DNS_PORT, DnsBlock},
    policy::{List, OwnerKey, Policy, PortKey, RangeKey},
};

/// A policy ready to be written: the fixed row and its lists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompiledPolicy {
    fixed: Policy,
    lists: Lists,
}

/// The lists of a policy, none of them empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lists {
    /// Ports, by position.
    pub ports: BTreeMap<List, Vec<u16>>,
    /// Ports of lists with ranges, each with its position.
    pub ranged_ports: BTreeMap<List, Vec<(u16, u32)>>,
    /// Ranges of addresses, by position.
    pub ranges: BTreeMap<List, Vec<IpNet>>,
    /// Users and groups, by position.
    pub owners: BTreeMap<List, Vec<u32>>,
    /// Ranges of numbers in the place of addresses, with their values. None overlap.
    pub numbers: BTreeMap<List, Vec<(IpNet, u32)>>,
    /// The rules for DNS.
    pub dns: Option<DnsBlock>,
}

/// Numbers of rows of lists, by the map that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListSizes {
    /// Rows of port lists.
    pub ports: usize,
    /// Rows of CIDR lists.
    pub ranges: usize,
    /// Rows of owner lists.
    pub owners: usize,
}

impl ListSizes {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            ports: self.ports + other.ports,
            ranges: self.ranges + other.ranges,
            owners: self.owners + other.owners,
        }
    }
}

/// A policy as its rows are in the kernel. Two with equal rows decide alike and count alike; a [`CompiledPolicy`]
/// also keeps what leaves no trace there, such as an entry that is listed twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRows {
    ports: BTreeMap<(u16, u16), u32>,
    owners: BTreeMap<(u32, u32), u32>,
    ranges: BTreeMap<(u16, u16, u32, [u8; 16]), u32>,
}

impl ListRows {
    /// How many there are.
    #[must_use]
    pub fn sizes(&self) -> ListSizes {
        ListSizes {
            ports: self.ports.len(),
            ranges: self.ranges.len(),
            owners: self.owners.len(),
        }
    }

    /// Adds a row of a port list.
    pub fn add_port(&mut self, key: &PortKey, position: u32) {
        self.ports.insert((key.list, key.port), position);
    }

    /// Adds a row of an owner list.
    pub fn add_owner(&mut self, key: &OwnerKey, position: u32) {
        self.owners.insert((key.list, key.id), position);
    }

    /// Adds a row of a CIDR list.
    pub fn add_range(&mut self, key: &RangeKey, position: u32) {
        let range = (key.list, key.family, key.prefix_len, key.addr.octets());
        self.ranges.insert(range, position);
    }
}

impl CompiledPolicy {
    /// The rows of its lists.
    #[must_use]
    pub fn list_rows(&self) -> ListRows {
        let mut rows = ListRows::default();
        for (key, position) in self.port_rows(0) {
            rows.add_port(&key, position);
        }
        for (key, position) in self.owner_rows(0) {
            rows.add_owner(&key, position);
        }
        for (key, position) in self.range_rows(0) {
            rows.add_range(&key, position);
        }
        rows
    }

    /// Puts a row and its lists together; which lists the row has follows from the lists.
    #[must_use]
    pub fn new(mut fixed: Policy, lists: Lists) -> Self {
        let Lists {
            ports,
            ranged_ports,
            ranges,
            owners,
            numbers,
            dns,
        } = &lists;
        let named = ports.keys().chain(ranges.keys()).chain(owners.keys());
        let named = named.chain(numbers.keys()).chain(ranged_ports.keys());
        let named = named.chain(dns.map(|_| &List::Dns));
        fixed.lists = named.fold(0, |bits, list| bits | list.bit());
        Self { fixed, lists }
    }

    /// How many rows its lists need at most: an entry that is listed twice has one.
    #[must_use]
    pub fn list_sizes(&self) -> ListSizes {
        fn all<T>(lists: &BTreeMap<List, Vec<T>>) -> usize {
            lists.values().map(Vec::len).sum()
        }
        ListSizes {
            ports: all(&self.lists.ports)
                + all(&self.lists.ranged_ports)
                + usize::from(self.lists.dns.is_some()),
            ranges: all(&self.lists.ranges) + all(&self.lists.numbers),
            owners: all(&self.lists.owners),
        }
    }

    /// The fixed row.
    #[must_use]
    pub fn row(&self) -> Policy {
        self.fixed
    }

    /// The rows of the port lists of policy `policy`, each with its position in its list, and that of its rules for
    /// DNS.
    pub fn port_rows(&self, policy: u32) -> impl Iterator<Item = (PortKey, u32)> + '_ {
        let dns = self
            .lists
            .dns
            .map(|block| (List::Dns, DNS_PORT, block.to_bits()));
        let ranged = self.lists.ranged_ports.iter();
        let ranged = ranged.flat_map(|(list, ports)| {
            let row = |(port, position): &(u16, u32)| (*list, *port, *position);
            ports.iter().map(row)
        });
        first_wins(&self.lists.ports)
            .chain(ranged)
            .chain(dns)
            .map(move |(list, port, value)| {
                let list = list as u16;
                let key = PortKey { policy, list, port };
                (key, value)
            })
    }

    /// The rows of the owner lists.
    pub fn owner_rows(&self, policy: u32) -> impl Iterator<Item = (OwnerKey, u32)> + '_ {
        first_wins(&self.lists.owners).map(move |(list, id, position)| {
            let key = OwnerKey {
                policy,
                list: list as u32,
                id,
            };
            (key, position)
        })
    }

    /// The rows of the CIDR lists.
    pub fn range_rows(&self, policy: u32) -> impl Iterator<Item = (RangeKey, u32)> + '_ {
        let addresses = self.lists.ranges.iter();
        let addresses = addresses.flat_map(|(list, nets)| {
            counted_positions(nets)
                .into_iter()
                .map(move |row| (list, row))
        });
        let numbers = self.lists.numbers.iter();
        let numbers = numbers.flat_map(|(list, rows)| rows.iter().map(move |row| (list, *row)));
        addresses.chain(numbers).map(move |(list, (net, value))| {
            let key = RangeKey::new(policy, *list, net.network().into(), net.prefix_len());
            (key, value)
        })
    }
}

/// The positions that ranges count under. The trie finds the narrowest range, but a rule counts under
/// the first range that matches. So each range gets the position of the first one that contains it.
fn counted_positions(nets: &[IpNet]) -> HashMap<IpNet, u32> {
    // Wider ranges first, so that the ranges that contain another are seen before it.
    let mut order: Vec<(IpNet, u32)> = nets.iter().map(IpNet::trunc).zip(0..).collect();
    order.sort_by_key(|(net, position)| (net.prefix_len(), *position));
    let mut seen: HashMap<IpNet, u32> = HashMap::new();
    for (net, position) in order {
        let first = std::iter::successors(Some(net), IpNet::supernet)
            .filter_map(|wider| seen.get(&wider).copied())
            .chain([position])
            .min()
            .unwrap_or(position);
        seen.insert(net, first);
    }
    seen
}

/// Entries of all lists with their position; of equal entries only the first.
fn first_wins<T: Copy + Eq + std::hash::Hash>(
    lists: &BTreeMap<List, Vec<T>>,
) -> impl Iterator<Item = (List, T, u32)> + '_ {
    lists.iter().flat_map(|(list, entries)| {
        let mut seen = std::collections::HashSet::new();
        entries
            .iter()
            .zip(0..)
            .filter(move |(entry, _)| seen.insert(**entry))
            .map(|(entry, position)| (*list, *entry, position))
    })
}

#[cfg(test)]
mod tests;
