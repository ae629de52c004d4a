//! The network of the tests themselves: what it loses would look like a loss of the agent's.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    network::{GATEWAY_MAC, Lab},
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::eventually,
};

use crate::fixture::{VIP, at};

/// MAC addresses of the gateway's interfaces of a type, by name.
fn addresses(lab: &Lab, kind: &str) -> Result<Vec<(String, String)>> {
    let shown = lab.outside().ip(&format!("-j link show type {kind}"))?;
    let links: Vec<serde_json::Value> = serde_json::from_str(&shown).context("parse ip's JSON")?;
    let text = |link: &serde_json::Value, field: &str| {
        let text = link[field].as_str();
        text.map(str::to_owned)
            .with_context(|| format!("no {field} in {link}"))
    };
    links
        .iter()
        .map(|link| Ok((text(link, "ifname")?, text(link, "address")?)))
        .collect()
}

kernel_test!(the_gateway_is_reached_after_any_pod_has_gone);
/// A bridge takes the lowest MAC address of its ports unless it has one of its own.
fn the_gateway_is_reached_after_any_pod_has_gone() -> Result<()> {
    const GONE: Duration = Duration::from_secs(5);
    let mut lab = Lab::new()?;
    VIP.iter()
        .try_for_each(|address| lab.add_outside(address))?;
    let pods = [lab.pod("one", 2)?, lab.pod("two", 3)?];
    let outside = lab.outside().actor()?;
    sidecar::listen(&outside, &ROOT, 80)?;
    let mut ports = addresses(&lab, "veth")?;
    ports.sort_by(|one, other| one.1.cmp(&other.1));
    let (goes, _) = ports.first().context("no port")?;
    let stays = usize::from(goes == "one");
    let client = pods[stays].actor()?;
    let dial = || -> Result<()> {
        for address in VIP {
            client
                .dial(Dial::new(&APP, at(address, 80)))?
                .map_err(|errno| anyhow!("{address}: errno {errno}"))?;
        }
        Ok(())
    };
    dial().context("with both pods")?;
    lab.remove_namespace(&pods[1 - stays].netns)?;
    eventually(GONE, || {
        ensure!(addresses(&lab, "veth")?.len() != 2, "{goes} is still there");
        Ok(())
    })?;
    dial().context("after one has gone")?;
    let bridge = addresses(&lab, "bridge")?;
    ensure!(
        bridge == [("br0".to_owned(), GATEWAY_MAC.to_owned())],
        "{bridge:?}"
    );
    Ok(())
}
