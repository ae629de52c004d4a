//! A sidecar that receives no DNS queries, although it listens otherwise.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra, Places},
    command::run,
    network::{Lab, manifest},
    sidecar,
    wait::until,
};

use super::as_iptables::serve;

/// The agent has looked at the pod by then.
const LOOKED: Duration = Duration::from_secs(15);

fn wait_sidecar(places: &Places, state: &str, receives: bool) -> Result<Duration> {
    until(LOOKED, state, || {
        let pod = places.pod("test/app")?.context("the pod")?;
        Ok(pod["sidecar"]["state"] == state && pod["dns_listener"] == receives)
    })
}

kernel_test!(a_sidecar_that_receives_no_queries_is_seen);
fn a_sidecar_that_receives_no_queries_is_seen() -> Result<()> {
    const REMARK: &str = "does not listen on its DNS port";
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let server = serve(&pod)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = format!("127.0.0.1:{port}");
    let arguments = ["--metrics-addr", &address, "--metrics-per-pod", "1"];
    let agent = Agent::start_with(lab.places(), &Extra::arguments(&arguments))?;
    let places = &agent.places;
    let captured = manifest("app", &pod, &[]).with_variable("ISTIO_META_DNS_CAPTURE", "true");
    lab.write_manifest("app", &captured)?;
    places.wait_enrolled("test/app")?;
    wait_sidecar(places, "up", true)?;
    ensure!(places.output(&["status", "--check"])?.status.success());

    drop(server);
    wait_sidecar(places, "no-dns", false)?;
    for words in [&["pods"][..], &["why", "test/app"], &["status"]] {
        let output = places.output(words)?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(text.contains(REMARK), "{words:?}: {text}");
    }
    let check = places.output(&["status", "--check"])?;
    ensure!(!check.status.success(), "{check:?}");
    for line in [
        "sidetrack_pods_without_listener{port=\"dns\"} 1",
        "sidetrack_pod_listener{namespace=\"test\",pod=\"app\",port=\"dns\"} 0",
    ] {
        until(LOOKED, line, || {
            let page = run(&format!("curl -sf http://{address}/metrics"))?;
            Ok(page.lines().any(|it| it == line))
        })?;
    }
    let event = |what: &str| -> Result<()> {
        until(LOOKED, what, || {
            let events = places.output(&["events", "test/app"])?;
            Ok(String::from_utf8(events.stdout)?.contains(what))
        })
        .map(drop)
    };
    event(REMARK)?;

    let _server = serve(&pod)?;
    wait_sidecar(places, "up", true)?;
    event("sidecar-up")?;
    ensure!(places.output(&["status", "--check"])?.status.success());
    Ok(())
}
