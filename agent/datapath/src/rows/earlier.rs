//! The rows of earlier agents.

use std::collections::BTreeMap;

use anyhow::Result;
use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::PodRef;
use sidetrack_reconcile::node::EarlierRows;

use super::{PodRows, names};
use crate::{kernel::Datapath, netns::routes::RouteId};

/// Everything in the kernel that belongs to a pod.
///
/// # Errors
/// If a map cannot be read.
pub fn earlier_rows(datapath: &Datapath) -> Result<Vec<EarlierRows<PodRows>>> {
    let maps = &datapath.maps;
    let mut found: BTreeMap<NetnsCookie, EarlierRows<PodRows>> = BTreeMap::new();
    for (cookie, row) in maps.pods.rows()? {
        let rows = of(&mut found, NetnsCookie::new(cookie));
        let (namespace, name, uid) = names(&row);
        rows.pod = Some(PodRef { namespace, name });
        rows.uid = uid;
        rows.inode = NetnsInode::new(row.netns_inode);
        rows.rows.add_earlier_row(row);
    }
    for (key, route) in maps.routes.rows()? {
        let rows = of(&mut found, NetnsCookie::new(key.netns));
        if let Some(id) = RouteId::of(&key) {
            rows.rows.add_earlier_route(id, route);
        }
    }
    for (key, row) in maps.ifaces.rows()? {
        let rows = of(&mut found, NetnsCookie::new(key.netns));
        rows.rows.add_earlier_iface(key.ifindex, row);
    }
    for key in maps.selectors.keys()? {
        of(&mut found, NetnsCookie::new(key.netns));
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
        of(&mut found, cookie);
    }
    Ok(found.into_values().collect())
}

fn of(
    found: &mut BTreeMap<NetnsCookie, EarlierRows<PodRows>>,
    cookie: NetnsCookie,
) -> &mut EarlierRows<PodRows> {
    found.entry(cookie).or_insert_with(|| EarlierRows {
        cookie,
        pod: None,
        uid: None,
        inode: NetnsInode::new(0),
        rows: PodRows::earlier(cookie),
    })
}
