//! Reads a pod's sockets, a bounded number in a bounded time.

use std::{
    io,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6};
use serde::Serialize;
use sidetrack_common::{
    conn::{Destination, DestinationKey},
    policy::{List, NO_ID, OwnerKey, Policy},
    target::Target,
};

use super::{Connection, Listeners, Tables, explain};
use sidetrack_datapath::{
    kernel::{
        maps::Maps,
        netlink::continue_while,
        sock_diag::{self, Sockets},
        sock_records::{OpenSocket, Records},
    },
    netns::Netns,
};

/// Rows that can be requested at most.
pub const MAX_ROWS: usize = 10_000;
/// Sockets that are read at most: a connection may have both ends in the pod.
const MAX_SOCKETS: usize = 2 * MAX_ROWS;
/// Listening sockets that are read at most.
const MAX_LISTENERS: usize = 10_000;
/// How long the kernel may take.
const DEADLINE: Duration = Duration::from_secs(3);

/// A pod's open connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// The connections.
    pub connections: Vec<Connection>,
    /// How many more there are; `None` if there are more, of a number that is not known.
    pub omitted: Option<usize>,
}

/// Lists the connections in a namespace, `limit` at most.
///
/// # Errors
/// If the kernel cannot list sockets, or a map cannot be read.
pub fn list(
    netns: &Netns,
    maps: &Maps,
    records: &Records,
    limit: usize,
    all: bool,
) -> Result<Listing> {
    let tables = PodTables::read(netns.cookie(), maps)?;
    let (sockets, listeners, is_complete) = netns
        .run(|| read(records, Instant::now() + DEADLINE))?
        .context("list the sockets of the pod")?;
    let mut connections = explain(&sockets, &listeners, &tables, all);
    let omitted = connections.len().saturating_sub(limit);
    connections.truncate(limit);
    Ok(Listing {
        connections,
        omitted: is_complete.then_some(omitted),
    })
}

/// Reads what the calling thread's namespace has, and says whether that is all.
fn read(records: &Records, until: Instant) -> io::Result<(Vec<OpenSocket>, Listeners, bool)> {
    let mut listeners = Listeners::new();
    let mut count = 0;
    let mut sockets = Vec::new();
    let mut is_complete = true;
    let read = sock_diag::visit(Sockets::Listening, until, |socket| {
        let header = &socket.header;
        let id = &header.socket_id;
        let uid = (header.inode != 0).then_some(header.uid);
        let at = listeners.entry(id.source_port).or_default();
        at.push((id.source_address, uid));
        count += 1;
        continue_while(count < MAX_LISTENERS)
    });
    is_complete &= in_time(read)?;
    for family in [AF_INET, AF_INET6] {
        let read = records.visit(family, until, |socket| {
            if sockets.len() == MAX_SOCKETS {
                is_complete = false;
                return ControlFlow::Break(());
            }
            sockets.push(socket);
            ControlFlow::Continue(())
        });
        is_complete &= in_time(read)?;
    }
    Ok((sockets, listeners, is_complete))
}

/// What was read before the deadline is shown.
fn in_time(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
        other => other.map(|()| true),
    }
}

/// What the kernel's maps have about an enrolled pod.
struct PodTables<'a> {
    netns: u64,
    maps: &'a Maps,
    /// Its policy and the policy's id.
    policy: Option<(u32, Policy)>,
}

impl<'a> PodTables<'a> {
    fn read(netns: u64, maps: &'a Maps) -> Result<Self> {
        let pod = maps.pods.get(&netns).context("read POD_BY_NETNS")?;
        let policy = match pod {
            Some(pod) => {
                let policy = maps.policies.get(&pod.policy);
                let policy = policy.context("read POLICY_BY_ID")?;
                policy.map(|policy| (pod.policy, policy))
            }
            None => None,
        };
        Ok(Self {
            netns,
            maps,
            policy,
        })
    }
}

impl Tables for PodTables<'_> {
    fn destination(&self, target: Target) -> Option<Destination> {
        let key = DestinationKey::new(self.netns, target);
        let row = self.maps.destinations.get(&key).ok().flatten();
        row.map(|row| row.destination)
    }

    fn is_proxy(&self, uid: u32) -> Option<bool> {
        let (id, policy) = self.policy.as_ref()?;
        if policy.proxy_uid == NO_ID {
            return None;
        }
        if policy.proxy_uid == uid {
            return Some(true);
        }
        let key = OwnerKey {
            policy: *id,
            list: List::MoreProxyUids as u32,
            id: uid,
        };
        Some(self.maps.owners.get(&key).ok()?.is_some())
    }

    fn outbound_port(&self) -> Option<u16> {
        self.policy.map(|(_, policy)| policy.outbound_port)
    }

    fn inbound_port(&self) -> Option<u16> {
        let (_, policy) = self.policy?;
        (policy.virtual_interfaces == 0).then_some(policy.inbound_port)
    }
}
