//! What is lost on kernels that lack a facility sidetrack does without, shown on one that has it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use aya::programs::loaded_programs;
use lab::{
    agent::{Agent, Extra},
    command::run,
    network::{Lab, manifest},
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
};

use crate::{doctor, facilities::refusal, fixture::at};

/// Makes agent and doctor run without bpf_set_retval, which came with Linux 5.18, and without the
/// ingress interface in sk_lookup, of 5.17.
const WITHOUT: (&str, &str) = ("SIDETRACK_WITHOUT", "set_retval,ingress_ifindex");

kernel_test!(refusals_without_set_retval);
fn refusals_without_set_retval() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("app", 2)?;
    pod.ip("route add unreachable 10.202.0.0/16")?;
    pod.ip("route add unreachable fdb2::/64 metric 1")?;
    lab.write_pod("app", &pod, &[])?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let client = pod.actor()?;
    // The second agent replaces the first one's programs.
    for (variables, refused) in [
        (&[WITHOUT][..], libc::EPERM),
        (&[], refusal(libc::EHOSTUNREACH)),
    ] {
        let agent = Agent::start_with(lab.places(), &Extra::variables(variables))?;
        agent.places.wait_enrolled("test/app")?;
        for to in ["10.202.0.1", "fdb2::1"] {
            let result = client.dial(Dial::new(&APP, at(to, 80)))?;
            ensure!(result == Err(refused), "{to}, {variables:?}: {result:?}");
        }
        let connected = client.connect(&APP, at(VIP, 80))?;
        ensure!(connected.accepted_by == 15001, "{connected:?}");
    }
    Ok(())
}

kernel_test!(interfaces_the_kernel_does_not_report);
fn interfaces_the_kernel_does_not_report() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("app", 2)?;
    let outside = lab.outside().actor()?;
    let agent = Agent::start_with(lab.places(), &Extra::variables(&[WITHOUT]))?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    // Inbound connections are evaluated as before.
    lab.enroll("app", &pod, &[])?;
    let inbound = || -> Result<u16> {
        let connected = outside.connect(&ROOT, at("10.77.0.2", 80))?;
        Ok(connected.accepted_by)
    };
    ensure!(inbound()? == 15006);
    // A policy that cannot be carried out is refused, and the last good one stays.
    let excluded = ("traffic.sidecar.istio.io/excludeInterfaces", "eth0");
    lab.write_pod("app", &pod, &[excluded])?;
    agent.places.wait_pod("test/app", |row| {
        row.is_some_and(|row| row["reason"].to_string().contains("5.17"))
    })?;
    ensure!(inbound()? == 15006);
    Ok(())
}

kernel_test!(doctor_names_what_is_lost);
fn doctor_names_what_is_lost() -> Result<()> {
    let lab = Lab::new()?;
    let output = lab
        .places()
        .command(&["doctor", "-o", "json"])?
        .env(WITHOUT.0, WITHOUT.1)
        .output()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(output.status.success(), "{report}");
    for since in ["5.17", "5.18"] {
        let check = report["checks"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|check| check["since"] == since)
            .with_context(|| format!("the facility of {since}"))?;
        ensure!(
            check["ok"] == false && check["optional"] == true,
            "{report}"
        );
    }
    Ok(())
}

kernel_test!(verifiers_have_room);
/// Verifiers differ in how many paths they take for one, so what this kernel's walks must be far from
/// what others allow. DNS capture has programs of its own.
fn verifiers_have_room() -> Result<()> {
    /// Of BPF_COMPLEXITY_LIMIT_INSNS, 1,000,000. Those for sendmsg take about 100,000 each. A value that is known on one
    /// way and not on another doubles what comes after it.
    const MAX_OF_DNS: u32 = 160_000;
    /// Connect takes up to 85,000 on Linux 6.18, and the inbound program 50,000 there and 116,000 on 6.1.
    const MAX_INSTRUCTIONS: u32 = 160_000;
    let mut lab = Lab::new()?;
    let _agent = Agent::start(lab.places())?;
    let pod = lab.pod("app", 2)?;
    let with_dns = manifest("app", &pod, &[]).with_istio_init(
        &["istio-iptables", "--redirect-dns", "--capture-all-dns"],
        &[],
    );
    lab.enroll_manifest("app", &with_dns)?;
    let mut names = BTreeSet::new();
    for program in loaded_programs() {
        let Ok(program) = program else { continue };
        let name = program.name_as_str().unwrap_or_default();
        // None before Linux 5.16.
        let Some(walked) = program.verified_instruction_count() else {
            continue;
        };
        if name.starts_with("st_") {
            println!("{name}: {walked}");
            let max = if name.starts_with("st_dns_") {
                MAX_OF_DNS
            } else {
                MAX_INSTRUCTIONS
            };
            ensure!(walked < max, "{name}: {walked} instructions");
            names.insert(name.to_owned());
        }
    }
    ensure!(names.len() >= 7, "{names:?}");
    ensure!(names.contains("st_dns_sendmsg6"), "{names:?}");
    Ok(())
}

kernel_test!(a_node_without_ipv6);
/// `ipv6.disable=1`, as far as programs see it: there are no sockets of that family. What manifests for
/// all nodes say must do.
fn a_node_without_ipv6() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("app", 2)?;
    lab.write_pod("app", &pod, &[])?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let wrapper = doctor::refusing(&lab, "socket 0=10 97")?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let agent = Agent::start_with(
        lab.places(),
        &Extra {
            binary: Some(&wrapper),
            arguments: &["--metrics-addr", &format!("[::]:{port}")],
            ..Extra::default()
        },
    )?;
    agent.places.wait_enrolled("test/app")?;
    let ready = run(&format!("curl -sf http://127.0.0.1:{port}/readyz"))?;
    ensure!(ready.trim() == "ok", "{ready}");
    let connected = pod.actor()?.connect(&APP, at(VIP, 80))?;
    ensure!(connected.accepted_by == 15001, "{connected:?}");
    Ok(())
}
