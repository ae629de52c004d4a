//! Inbound connections count once each, under the rule that redirects them.

use std::{thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    protocol::{ACK, Dial, ROOT, Request},
    sidecar,
};
use serde_json::Value;

use crate::fixture::{POD, PodFixture, at};

/// For packets to arrive.
const ARRIVE: Duration = Duration::from_millis(100);

fn connections(fixture: &PodFixture) -> Result<Value> {
    let pod = fixture.agent.places.pod("test/app")?.context("the pod")?;
    Ok(pod["connections"].clone())
}

kernel_test!(a_late_packet_is_no_connection);
fn a_late_packet_is_no_connection() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let connect = |port| -> Result<()> {
        let mut dial = Dial::new(&ROOT, at(POD[0], 80));
        dial.source = Some(at("10.77.0.254", port));
        let connected = fixture.outside.dial(dial)?;
        ensure!(connected.is_ok(), "{connected:?}");
        sleep(ARRIVE);
        Ok(())
    };
    let acknowledge = |port: u16| -> Result<()> {
        fixture.outside.ask(&Request::Packets {
            from: format!("10.77.0.254:{port}").parse()?,
            to: "10.77.0.2:80".parse()?,
            count: 1,
            flags: ACK,
        })?;
        sleep(ARRIVE);
        Ok(())
    };
    let counted = || -> Result<Value> { Ok(connections(&fixture)?["inbound_redirected"].clone()) };
    connect(40_000)?;
    acknowledge(40_000)?;
    ensure!(counted()? == 1, "the packet counts: {}", counted()?);
    connect(40_001)?;
    ensure!(counted()? == 2, "{}", counted()?);
    // Such packets do reach the program: one of no known connection counts.
    acknowledge(40_002)?;
    ensure!(counted()? == 3, "{}", counted()?);
    Ok(())
}

kernel_test!(without_a_listener_it_counts_under_its_rule_and_as_refused);
fn without_a_listener_it_counts_under_its_rule_and_as_refused() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let answer = fixture.outside.dial(Dial::new(&ROOT, at(POD[0], 80)))?;
    ensure!(answer.is_err(), "{answer:?}");
    let shown = connections(&fixture)?;
    ensure!(
        shown["refused"] == 1 && shown["inbound_redirected"] == 0,
        "{shown}"
    );
    let rules = fixture
        .lab
        .places()
        .json(&["rules", "test/app", "-o", "json"])?;
    let rules = rules.as_array().context("a list of rules")?;
    let counted = |scope: &str, name: &str| {
        let row = rules
            .iter()
            .find(|row| row["scope"] == scope && row["name"] == name);
        row.and_then(|row| row["connections"].as_u64())
    };
    ensure!(counted("line", "in-all") == Some(1), "{rules:?}");
    ensure!(counted("reason", "no-listener") == Some(1), "{rules:?}");
    Ok(())
}
