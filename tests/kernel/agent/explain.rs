//! `rules`, `explain` and the log of decisions.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra, Places},
    command::run,
    network::Lab,
    node::VIP,
    protocol::{APP, Dial},
    sidecar,
    wait::eventually,
};
use serde_json::Value;

use super::redirected;
use crate::fixture::{PodFixture, at};

kernel_test!(rules_and_explain_show_what_happens);
fn rules_and_explain_show_what_happens() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[("traffic.sidecar.istio.io/excludeOutboundPorts", "3306,8443")])?;
    redirected(&fixture.client)?;
    redirected(&fixture.client)?;
    let places = &fixture.agent.places;
    // The counters count connections, by the rule that decided them.
    let rules = places.json(&["rules", "test/app", "-o", "json"])?;
    let count = |name: &str| -> Option<u64> {
        let rules = rules.as_array()?;
        rules.iter().find(|rule| rule["name"] == name)?["connections"].as_u64()
    };
    ensure!(
        count("out-all") == Some(2) && count("out-port-excluded") == Some(0),
        "{rules}"
    );
    explain_agrees(places)?;
    // The text loads into iptables itself.
    let text = places
        .output(&["rules", "test/app", "--format", "iptables"])?
        .stdout;
    let file = fixture.lab.dir().join("rules.v4");
    fs::write(&file, text)?;
    let netns = &fixture.lab.outside().netns;
    run(&format!(
        "ip netns exec {netns} iptables-restore --test {}",
        file.display()
    ))?;
    Ok(())
}

/// Explain gives the verdict that the kernel gave, in the words of the rules.
fn explain_agrees(places: &Places) -> Result<()> {
    let explain = |words: &[&str]| -> Result<Value> {
        places.json(&[&["explain", "test/app"], words, &["-o", "json"]].concat())
    };
    let app = ["outbound", "--uid", "1000", "--gid", "1000", "--dst"];
    let proxy = ["outbound", "--uid", "1337", "--gid", "1337", "--dst"];
    for (who, destination, verdict, port, rule) in [
        (
            app,
            "10.109.118.31:80",
            "redirect",
            Value::from(15001),
            "-A ISTIO_OUTPUT -j ISTIO_REDIRECT",
        ),
        (
            app,
            "10.109.118.31:8443",
            "untouched",
            Value::Null,
            "--dport 8443 -j RETURN",
        ),
        (
            app,
            "10.77.0.2:80",
            "untouched",
            Value::Null,
            "-o lo -m owner ! --uid-owner 1337 -j RETURN",
        ),
        (
            proxy,
            "10.77.0.2:80",
            "redirect",
            Value::from(15006),
            "--uid-owner 1337 -j ISTIO_IN_REDIRECT",
        ),
        (
            app,
            "224.0.0.1:80",
            "refuse",
            Value::Null,
            "no usable route",
        ),
    ] {
        let answer = explain(&[&who[..], &[destination]].concat())?;
        let said = answer["rule"].as_str().unwrap_or_default();
        ensure!(
            answer["verdict"] == verdict && answer["port"] == port && said.contains(rule),
            "{destination}: {answer}"
        );
    }
    let inbound = explain(&["inbound", "--dst", "10.77.0.2:15021"])?;
    ensure!(
        inbound["verdict"] == "untouched" && inbound["dialect"] == "current",
        "{inbound}"
    );
    Ok(())
}

kernel_test!(decisions_can_be_logged);
fn decisions_can_be_logged() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_pod("app", &pod, &[])?;
    let agent = Agent::start_with(
        lab.places(),
        &Extra::variables(&[("RUST_LOG", "info,sidetrack_core=debug")]),
    )?;
    agent.places.wait_enrolled("test/app")?;
    let _ = pod.actor()?.dial(Dial::new(&APP, at(VIP, 80)))?;
    eventually(Duration::from_secs(5), || {
        let log = agent.places.log();
        ensure!(log.contains("sidetrack_core::connect"), "{log}");
        Ok(())
    })
}
