//! The connections of all enrolled pods of the node, with the names of pods at their other ends.
//!
//! This process reads them, not the agent: a number of rows that is given, within a time that is given.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::ifaddrs::getifaddrs;
use serde::Serialize;
use sidetrack_base::runtime::exit_code;
use sidetrack_datapath::{
    kernel::{maps::Maps, pins::Pins, sock_records::Records},
    netns::Netns,
};
use sidetrack_policy::text::counted;

use super::{COLUMNS, Options, omitted, open, row};
use crate::{
    api::PodStatus,
    cli::output,
    observe::connections::{Connection, Direction, list},
};

/// How long reading all pods may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Addresses of a pod that are looked at: it may give its interfaces any number.
const MAX_ADDRESSES: usize = 16;

/// The connections of a node.
#[derive(Debug, Default, Serialize)]
struct NodeListing {
    connections: Vec<OfPod>,
    /// How many more there are; `None` if there are more, of a number that is not known.
    omitted: Option<usize>,
    /// Pods that could not be read, and why.
    unread: Vec<String>,
}

/// A connection of a pod.
#[derive(Debug, Serialize)]
struct OfPod {
    pod: String,
    /// The enrolled pod of this node that has the address of the other end.
    peer: Option<String>,
    #[serde(flatten)]
    connection: Connection,
}

/// Pods by the addresses of their interfaces. One that several pods have names none.
#[derive(Debug, Default)]
struct PodsByAddress(HashMap<IpAddr, Option<String>>);

impl PodsByAddress {
    /// Of all enrolled pods that can be read in time.
    fn of(pods: &[PodStatus], until: Instant) -> Self {
        let mut names = Self::default();
        for pod in pods.iter().take_while(|_| Instant::now() < until) {
            let netns = pod.netns.as_ref().and_then(|netns| open(netns).ok());
            if let Some(addresses) = netns.and_then(|netns| addresses(&netns).ok()) {
                names.add(&pod.full_name(), addresses);
            }
        }
        names
    }

    fn add(&mut self, pod: &str, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses {
            match self.0.entry(address) {
                Entry::Vacant(entry) => {
                    entry.insert(Some(pod.to_owned()));
                }
                Entry::Occupied(mut entry) if entry.get().as_deref() != Some(pod) => {
                    entry.insert(None);
                }
                Entry::Occupied(_) => {}
            }
        }
    }

    /// The pod at the other end of a pod's connection.
    fn peer(&self, connection: &Connection) -> Option<String> {
        let address = match connection.direction {
            Direction::Outbound => connection.original_destination?,
            Direction::Inbound => connection.client?,
            Direction::Unknown => connection.remote,
        };
        self.0.get(&address.ip().to_canonical())?.clone()
    }
}

pub(super) fn run(options: &Options, pods: Vec<PodStatus>) -> Result<ExitCode> {
    let pins = Pins::new(&options.places.bpffs)?;
    let (maps, records) = (Maps::open(&pins)?, Records::open(&pins)?);
    let until = Instant::now() + DEADLINE;
    let mut listing = NodeListing {
        omitted: Some(0),
        ..NodeListing::default()
    };
    // A namespace is open only while it is read: thousands of descriptors are more than a process may have.
    let names = PodsByAddress::of(&pods, until);
    let wanted = |pod: &&PodStatus| options.namespace.has(&pod.namespace);
    for pod in pods.iter().filter(wanted) {
        let Some(netns) = &pod.netns else {
            continue;
        };
        let pod = pod.full_name();
        if Instant::now() >= until {
            let late = format!("pod {pod}: not read within {DEADLINE:?}");
            listing.unread.push(late);
            continue;
        }
        let room = options.limit - listing.connections.len();
        let read = open(netns).and_then(|netns| list(&netns, &maps, &records, room, options.all));
        match read {
            Ok(of_pod) => {
                let more = of_pod.omitted;
                listing.omitted = listing.omitted.zip(more).map(|(all, more)| all + more);
                let rows = of_pod.connections.into_iter();
                listing.connections.extend(rows.map(|connection| OfPod {
                    pod: pod.clone(),
                    peer: names.peer(&connection),
                    connection,
                }));
            }
            Err(error) => listing.unread.push(format!("pod {pod}: {error:#}")),
        }
    }
    if !output::print_value(options.output, &listing)? {
        print(&listing)?;
    }
    Ok(exit_code(listing.unread.is_empty()))
}

/// The addresses that others reach a pod by.
fn addresses(netns: &Netns) -> Result<Vec<IpAddr>> {
    let found = netns.run(|| -> nix::Result<Vec<IpAddr>> {
        let all = getifaddrs()?.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
        });
        let others = all.filter(|address| match address {
            IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
            IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
        });
        Ok(others.take(MAX_ADDRESSES).collect())
    })?;
    Ok(found?)
}

fn print(listing: &NodeListing) -> Result<()> {
    if listing.connections.is_empty() {
        output::print("no open TCP connections of enrolled pods")?;
    } else {
        let columns = [&["POD"], &COLUMNS[..], &["PEER"]].concat();
        let mut table = output::table(columns);
        for of_pod in &listing.connections {
            let peer = output::or_dash(of_pod.peer.as_ref());
            let cells = row(&of_pod.connection).into_iter();
            table.add_row([of_pod.pod.clone()].into_iter().chain(cells).chain([peer]));
        }
        output::print_table(&table)?;
    }
    omitted(listing.omitted);
    for problem in listing.unread.iter().take(MAX_UNREAD) {
        output::remark(problem);
    }
    if let Some(more) = listing.unread.len().checked_sub(MAX_UNREAD + 1) {
        let pods = counted(more as u64 + 1, "more pod");
        output::remark(format!("{pods} could not be read"));
    }
    Ok(())
}

/// Pods that could not be read, and are named.
const MAX_UNREAD: usize = 5;

#[cfg(test)]
mod tests;
