//! Rows that describe a pod's namespace: routes, interfaces and listeners.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    node::VIP,
    protocol::{APP, Dial},
};
use sidetrack_common::addr::Family;

use super::{cookie, enrolled_pod, maps, was_repaired, works};
use crate::fixture::at;

kernel_test!(a_late_listener_search_ends_before_sidecar);
/// A sidecar that began to listen while the kernel programs were away.
fn a_late_listener_search_ends_before_sidecar() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[("sidetrack.dev/before-sidecar", "passthrough")])?;
    let maps = maps(&fixture)?;
    let cookie = cookie(&fixture)?;
    maps.before_sidecar.insert(&cookie, &1)?;
    let past = fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(
        past.as_ref().is_ok_and(|past| past.accepted_by == 80),
        "{past:?}"
    );
    fixture.wait("the end of it", || {
        Ok(maps.before_sidecar.get(&cookie)?.is_none())
    })?;
    works(&fixture)
}

kernel_test!(routes_and_interfaces_are_written_again, needs INGRESS_INTERFACE);
fn routes_and_interfaces_are_written_again() -> Result<()> {
    let (fixture, _sidecar) =
        enrolled_pod(&[("traffic.sidecar.istio.io/excludeInterfaces", "lo")])?;
    let maps = maps(&fixture)?;
    // The kernel itself changes the routes of an IPv6 address for a while (DAD).
    let routes = loop {
        let before = maps.routes.rows()?;
        thread::sleep(Duration::from_millis(2500));
        if before == maps.routes.rows()? {
            break before;
        }
    };
    let ifaces = maps.ifaces.keys()?.len();
    ensure!(
        routes.len() > 1 && ifaces == 1,
        "{routes:?}, {ifaces} interfaces"
    );
    for route in maps.routes.keys()? {
        maps.routes.remove(&route)?;
    }
    for iface in maps.ifaces.keys()? {
        maps.ifaces.remove(&iface)?;
    }
    fixture.wait("routes and interfaces", || {
        // A row that says the same as the wider one above it may stay away.
        for (key, route) in &routes {
            if maps.routes.get(key)?.as_ref() != Some(route) {
                return Ok(false);
            }
        }
        Ok(maps.ifaces.keys()?.len() == ifaces)
    })?;
    // They were removed one after the other, perhaps in the middle of a comparison.
    was_repaired(
        &fixture,
        "rows of pod test/app were missing or different",
        1..=2,
    )
}

/// The agent looks for listeners every two seconds. One that is lost after such a look is searched for at
/// once, one that was never seen less and less often.
const CHECKED_AFTER: Duration = Duration::from_millis(2500);

kernel_test!(listeners_are_found_again);
fn listeners_are_found_again() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let maps = maps(&fixture)?;
    thread::sleep(CHECKED_AFTER);
    let keys = maps.listeners.keys()?;
    ensure!(!keys.is_empty(), "a listener is known");
    for key in &keys {
        maps.listeners.remove(key)?;
    }
    fixture.wait("the listeners", || Ok(!maps.listeners.keys()?.is_empty()))?;
    works(&fixture)?;
    // Those of one family.
    thread::sleep(CHECKED_AFTER);
    let (v4, others): (Vec<_>, Vec<_>) = maps
        .listeners
        .keys()?
        .into_iter()
        .partition(|key| key.family == Family::V4 as u16);
    ensure!(!v4.is_empty() && !others.is_empty(), "{v4:?}, {others:?}");
    for key in &v4 {
        maps.listeners.remove(key)?;
    }
    fixture.wait("the listeners of IPv4", || {
        Ok(maps.listeners.keys()?.len() == v4.len() + others.len())
    })?;
    works(&fixture)
}
