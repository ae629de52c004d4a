//! `sidetrack connections` shows open connections by the addresses that were dialed.

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    injected::with_istio_init,
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::printed;
use crate::fixture::{POD, PodFixture, VIP, at};

const LIST: [&str; 4] = ["connections", "test/app", "-o", "json"];

/// A pod with a sidecar, enrolled for both families.
fn fixture() -> Result<(PodFixture, Actor)> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    let manifest = with_istio_init(&fixture.pod, &[], &[("ISTIO_DUAL_STACK", "true")]);
    fixture.lab.enroll_manifest("app", &manifest)?;
    Ok((fixture, sidecar))
}

/// Opens a connection that stays; the client's address as the client sees it.
fn hold(actor: &Actor, dial: Dial) -> Result<String> {
    let to = dial.destination;
    let held = actor.hold(dial)?;
    let held = held.map_err(|errno| anyhow::anyhow!("to {to}: errno {errno}"))?;
    let ip = held.client.local.ip().to_canonical();
    Ok(std::net::SocketAddr::new(ip, held.client.local.port()).to_string())
}

fn list(fixture: &PodFixture, more: &[&str]) -> Result<Value> {
    fixture.lab.places().json(&[&LIST[..], more].concat())
}

fn rows(listing: &Value) -> Result<&[Value]> {
    let rows = listing["connections"].as_array().context("a list")?;
    Ok(rows)
}

/// The only row that has these fields.
fn only<'a>(listing: &'a Value, wanted: &Value) -> Result<&'a Value> {
    let wanted = wanted.as_object().context("an object")?;
    let has = |row: &&Value| wanted.iter().all(|(name, value)| row[name] == *value);
    let found: Vec<&Value> = rows(listing)?.iter().filter(has).collect();
    ensure!(found.len() == 1, "{wanted:?}: {found:?} of {listing:#}");
    Ok(found[0])
}

kernel_test!(open_connections_are_listed_by_dialed_destination);
fn open_connections_are_listed_by_dialed_destination() -> Result<()> {
    let (mut fixture, _sidecar) = fixture()?;
    let mut mapped = Dial::new(&APP, at(VIP[0], 80));
    mapped.mapped = true;
    let by_target = hold(&fixture.client, Dial::new(&APP, at(VIP[0], 80)))?;
    let by_mapped = hold(&fixture.client, mapped)?;
    let by_record = hold(&fixture.client, Dial::new(&APP, at(VIP[1], 80)))?;
    let to_own_pod = hold(&fixture.client, Dial::new(&PROXY, at(POD[0], 80)))?;
    let untouched = hold(&fixture.client, Dial::new(&PROXY, at(VIP[0], 80)))?;
    let inbound = hold(&fixture.outside, Dial::new(&ROOT, at(POD[0], 80)))?;
    let by_uid = |client: &str, to: &str, port: Option<u16>, uid: u32| {
        json!({
            "direction": "outbound", "end": "connecting", "state": "ESTAB", "uid": uid,
            "owner": if uid == PROXY.uid { "sidecar" } else { "application" },
            "client": client, "original_destination": to, "capture_port": port,
            "via": if port.is_some() { "sidecar" } else { "direct" },
        })
    };
    let wanted = [
        by_uid(&by_target, "10.109.118.31:80", Some(15001), APP.uid),
        by_uid(&by_mapped, "10.109.118.31:80", Some(15001), APP.uid),
        by_uid(&by_record, "[fd99::31]:80", Some(15001), APP.uid),
        by_uid(&to_own_pod, "10.77.0.2:80", Some(15006), PROXY.uid),
        by_uid(&untouched, "10.109.118.31:80", None, PROXY.uid),
        json!({
            "direction": "inbound", "end": "accepted", "owner": "sidecar", "uid": PROXY.uid,
            "client": &inbound, "original_destination": "10.77.0.2:80",
            "via": "sidecar", "capture_port": 15006,
        }),
    ];
    let listing = list(&fixture, &[])?;
    ensure!(rows(&listing)?.len() == wanted.len(), "{listing:#}");
    ensure!(listing["omitted"] == 0, "{listing:#}");
    for wanted in &wanted {
        let row = only(&listing, wanted)?;
        // The accepting end sends its names.
        ensure!(row["idle_ms"].as_u64() < Some(60_000), "{row}");
        let bytes = (row["sent_bytes"].as_u64(), row["received_bytes"].as_u64());
        let (sends, receives) = (wanted["end"] == "accepted", wanted["end"] == "connecting");
        ensure!(
            (bytes.0 > Some(0)) == sends && (bytes.1 > Some(0)) == receives,
            "{row}"
        );
    }
    // Where the sockets are, as ss shows it.
    let row = only(&listing, &wanted[0])?;
    let remote = row["remote"].as_str().context("remote")?;
    ensure!(
        remote.starts_with("127.") && remote.ends_with(":15001"),
        "{row}"
    );

    both_ends_are_shown(&fixture, &wanted)?;
    the_table_names_both(&fixture, &by_record)?;

    // The same without an agent.
    fixture.agent.end(Signal::SIGKILL)?;
    let without = list(&fixture, &[])?;
    for wanted in &wanted {
        only(&without, wanted)?;
    }
    Ok(())
}

/// `--all` adds the sidecar's ends: four of the connections go to the sidecar in the same pod.
fn both_ends_are_shown(fixture: &PodFixture, wanted: &[Value]) -> Result<()> {
    let both = list(fixture, &["--all"])?;
    ensure!(rows(&both)?.len() == wanted.len() + 4, "{both:#}");
    for wanted in &wanted[..4] {
        only(&both, wanted)?;
        let other = json!({
            "direction": "outbound", "end": "accepted", "owner": "sidecar", "via": "sidecar",
            "client": wanted["client"], "capture_port": wanted["capture_port"],
            "original_destination": wanted["original_destination"],
        });
        only(&both, &other)?;
    }
    Ok(())
}

fn the_table_names_both(fixture: &PodFixture, by_record: &str) -> Result<()> {
    let table = printed(&fixture.lab, &["connections", "test/app"])?;
    let line = table.lines().find(|line| line.contains(by_record));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    ensure!(
        words.len() == 10
            && words[..7]
                == [
                    "outbound",
                    "ESTAB",
                    by_record,
                    "[fd99::31]:80",
                    "sidecar",
                    "15001",
                    "1000"
                ],
        "{table}"
    );
    Ok(())
}

kernel_test!(connections_beyond_the_limit_are_counted);
fn connections_beyond_the_limit_are_counted() -> Result<()> {
    const MANY: usize = 30;
    let (fixture, _sidecar) = fixture()?;
    let flooded = fixture.client.flood(at(VIP[0], 80), MANY)?;
    ensure!(flooded.pending == MANY, "{flooded:?}");
    let listing = list(&fixture, &["--limit", "10"])?;
    ensure!(rows(&listing)?.len() == 10, "{listing:#}");
    ensure!(listing["omitted"] == MANY - 10, "{listing:#}");
    let words = ["connections", "test/app", "--limit", "10"];
    let output = fixture.lab.places().output(&words)?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(said.contains("there are 20 more"), "{said}");
    for limit in ["0", "10001", "many"] {
        let words = ["connections", "test/app", "--limit", limit];
        let output = fixture.lab.places().output(&words)?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(2), "{limit}: {said}");
        ensure!(said.contains("between 1 and 10000"), "{limit}: {said}");
    }
    Ok(())
}

kernel_test!(what_is_not_certain_of_a_connection_is_unknown);
fn what_is_not_certain_of_a_connection_is_unknown() -> Result<()> {
    let fixture = PodFixture::new()?;
    // Before the pod is enrolled.
    hold(&fixture.client, Dial::new(&APP, at(VIP[0], 80)))?;
    fixture.enroll(&[])?;
    let listing = list(&fixture, &[])?;
    let row = only(&listing, &json!({"remote": "10.109.118.31:80"}))?;
    ensure!(
        row["direction"] == "unknown" && row["end"] == "unknown" && row["via"] == "unknown",
        "{row}"
    );
    ensure!(row["original_destination"].is_null(), "{row}");
    ensure!(row["uid"] == APP.uid, "{row}");
    let table = printed(&fixture.lab, &["connections", "test/app"])?;
    ensure!(table.contains("10.109.118.31:80 (remote)"), "{table}");
    Ok(())
}

/// What a command that fails says.
fn fails(fixture: &PodFixture, pod: &str) -> Result<String> {
    let output = fixture.lab.places().output(&["connections", pod])?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

kernel_test!(connections_of_pods_that_are_not_there);
fn connections_of_pods_that_are_not_there() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let said = fails(&fixture, "test/other")?;
    ensure!(said.contains("no pod test/other is known"), "{said}");
    let off = [("sidecar.istio.io/inject", "false")];
    fixture.lab.write_pod("app", &fixture.pod, &off)?;
    let is_listed = |pod: Option<&Value>| pod.is_some_and(|pod| pod["state"] == "skipped");
    fixture.lab.places().wait_pod("test/app", is_listed)?;
    let said = fails(&fixture, "test/app")?;
    ensure!(said.contains("pod test/app is not enrolled"), "{said}");

    fixture.enroll(&[])?;
    let table = printed(&fixture.lab, &["connections", "test/app"])?;
    ensure!(table.contains("no open TCP connections"), "{table}");

    // It ends while no agent runs.
    fixture.agent.end(Signal::SIGKILL)?;
    let PodFixture {
        client,
        outside,
        agent,
        pod,
        mut lab,
    } = fixture;
    drop(client);
    lab.remove_namespace(&pod.netns)?;
    let output = lab.places().output(&["connections", "test/app"])?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{said}");
    ensure!(said.contains("the pod has ended"), "{said}");
    drop((agent, outside));
    Ok(())
}

kernel_test!(connections_of_the_node_name_the_pods_at_both_ends);
fn connections_of_the_node_name_the_pods_at_both_ends() -> Result<()> {
    let (mut fixture, _sidecar) = fixture()?;
    let other = fixture.lab.pod("other", 3)?;
    let _other_sidecar = sidecar::start(&other, &[80])?;
    fixture.lab.enroll("other", &other, &[])?;
    // By the proxy, so that it goes to the other pod directly.
    let client = hold(&fixture.client, Dial::new(&PROXY, at("10.77.0.3", 80)))?;
    let outside = hold(&fixture.outside, Dial::new(&ROOT, at(POD[0], 80)))?;
    let places = fixture.lab.places().clone();
    let all = || places.json(&["connections", "-o", "json"]);
    let listing = all()?;
    ensure!(
        rows(&listing)?.len() == 3 && listing["omitted"] == 0,
        "{listing:#}"
    );
    for (pod, peer, direction, client) in [
        ("test/app", json!("test/other"), "outbound", &client),
        ("test/other", json!("test/app"), "inbound", &client),
        // No pod.
        ("test/app", json!(null), "inbound", &outside),
    ] {
        only(
            &listing,
            &json!({"pod": pod, "peer": peer, "direction": direction, "client": client}),
        )?;
    }
    let capped = places.json(&["connections", "-o", "json", "--limit", "2"])?;
    ensure!(
        rows(&capped)?.len() == 2 && capped["omitted"] == 1,
        "{capped:#}"
    );
    let of_namespace = places.json(&["connections", "-n", "nowhere", "-o", "json"])?;
    ensure!(rows(&of_namespace)?.is_empty(), "{of_namespace:#}");
    let table = printed(&fixture.lab, &["connections"])?;
    // docs/operations.md shows it.
    println!("{table}");
    ensure!(
        table
            .lines()
            .next()
            .is_some_and(|line| line.starts_with("POD ") && line.ends_with(" PEER")),
        "{table}"
    );
    ensure!(table.contains("test/other "), "{table}");
    fixture.agent.end(Signal::SIGKILL)?;
    ensure!(rows(&all()?)?.len() == 3, "by the pins, without an agent");
    Ok(())
}
