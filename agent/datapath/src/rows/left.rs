//! Rows that earlier agents left.

use std::collections::BTreeMap;

use anyhow::Result;
use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::PodRef;
use sidetrack_reconcile::node::LeftRows;

use super::{PodRows, names};
use crate::{kernel::Datapath, netns::routes::RouteId};

/// Everything in the kernel that belongs to a pod.
///
/// # Errors
/// If a map cannot be read.
pub fn left_rows(datapath: &Datapath) -> Result<Vec<LeftRows<PodRows>>> {
    let maps = &datapath.maps;
    let mut left: BTreeMap<NetnsCookie, LeftRows<PodRows>> = BTreeMap::new();
    for (cookie, row) in maps.pods.rows()? {
        let found = of(&mut left, NetnsCookie::new(cookie));
        let (namespace, name, _) = names(&row);
        found.pod = Some(PodRef { namespace, name });
        found.inode = NetnsInode::new(row.netns_inode);
        found.rows.add_left_row(row);
    }
    for (key, route) in maps.routes.rows()? {
        let found = of(&mut left, NetnsCookie::new(key.netns));
        if let Some(id) = RouteId::of(&key) {
            found.rows.add_left_route(id, route);
        }
    }
    for (key, row) in maps.ifaces.rows()? {
        let found = of(&mut left, NetnsCookie::new(key.netns));
        found.rows.add_left_iface(key.ifindex, row);
    }
    for key in maps.selectors.keys()? {
        of(&mut left, NetnsCookie::new(key.netns));
    }
    // An agent that is killed while it removes a pod may have got as far as these.
    let listeners = maps.listeners.keys()?.into_iter().map(|key| key.netns);
    let counters = maps.counts.keys()?.into_iter().map(|key| key.netns);
    let counted = maps.counters_by_pod.keys()?.into_iter();
    let overflowing = maps.overflow.keys()?;
    let refused = maps.last_refusals.keys()?.into_iter().map(|key| key.netns);
    let own = maps.handshakes_by_pod.keys()?.into_iter();
    let passing = maps.before_sidecar.keys()?;
    let on_loopback = maps.sidecar_bits.keys()?;
    let remains = listeners
        .chain(counters)
        .chain(counted)
        .chain(overflowing)
        .chain(refused)
        .chain(own)
        .chain(passing)
        .chain(on_loopback);
    let attached = datapath.attached_pods()?;
    for cookie in remains.map(NetnsCookie::new).chain(attached) {
        of(&mut left, cookie);
    }
    Ok(left.into_values().collect())
}

fn of(
    left: &mut BTreeMap<NetnsCookie, LeftRows<PodRows>>,
    cookie: NetnsCookie,
) -> &mut LeftRows<PodRows> {
    left.entry(cookie).or_insert_with(|| LeftRows {
        cookie,
        pod: None,
        inode: NetnsInode::new(0),
        rows: PodRows::left(cookie),
    })
}
