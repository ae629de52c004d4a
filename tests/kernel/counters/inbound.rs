//! Inbound connections count once each, under the rule that redirects them.

use std::{thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    node::VIP,
    protocol::{ACK, APP, Dial, PROXY, ROOT, Request},
    sidecar,
    udp::SendUdp,
};
use serde_json::{Value, json};

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

kernel_test!(directions_are_counted_apart);
/// Each figure has a number of its own.
fn directions_are_counted_apart() -> Result<()> {
    const OUT: usize = 5;
    const IN: usize = 3;
    const DIRECT: usize = 2;
    const UDP: usize = 4;
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    for (from, who, to, count, by) in [
        (&fixture.client, &APP, VIP, OUT, 15001),
        (&fixture.outside, &ROOT, POD[0], IN, 15006),
        (&fixture.client, &PROXY, VIP, DIRECT, 80),
    ] {
        for _ in 0..count {
            let connected = from.connect(who, at(to, 80))?;
            ensure!(connected.accepted_by == by, "{connected:?}");
        }
    }
    for _ in 0..UDP {
        fixture.client.ask(&Request::SendUdp(Box::new(SendUdp {
            sender: APP,
            destination: at(VIP, 80),
            source: None,
            connected: true,
        })))?;
    }
    let shown = connections(&fixture)?;
    let expected = json!({
        "outbound_redirected": OUT, "inbound_redirected": IN, "untouched": DIRECT, "udp": UDP,
        "before_sidecar": 0, "refused": 0, "given_up": 0,
    });
    ensure!(shown == expected, "{shown} instead of {expected}");
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
