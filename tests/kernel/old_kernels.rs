//! What is lost on kernels that lack a facility sidetrack does without, shown on one that has it.

use std::{fs, os::unix::fs::PermissionsExt as _};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::programs::loaded_programs;
use lab::{
    agent::{Agent, Extra, binary},
    command::run,
    network::{Lab, manifest},
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
};

use crate::fixture::at;

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
    lab.write_manifest("app", &manifest("app", &pod, &[]))?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let client = pod.actor()?;
    // The second agent replaces the first one's programs.
    for (variables, refused) in [(&[WITHOUT][..], libc::EPERM), (&[], libc::EHOSTUNREACH)] {
        let agent = Agent::start_with(
            lab.places(),
            &Extra {
                variables,
                ..Extra::default()
            },
        )?;
        agent.places.wait_enrolled("test/app")?;
        for to in ["10.202.0.1", "fdb2::1"] {
            let result = client.dial(Dial::new(&APP, at(to, 80)))?;
            ensure!(result == Err(refused), "{to}, {variables:?}: {result:?}");
        }
        let connected = client
            .dial(Dial::new(&APP, at(VIP, 80)))?
            .map_err(|errno| anyhow!("{variables:?}: errno {errno}"))?;
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
    let agent = Agent::start_with(
        lab.places(),
        &Extra {
            variables: &[WITHOUT],
            ..Extra::default()
        },
    )?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    // Inbound connections are evaluated as before.
    lab.write_manifest("app", &manifest("app", &pod, &[]))?;
    agent.places.wait_enrolled("test/app")?;
    let inbound = || -> Result<u16> {
        let connected = outside
            .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?
            .map_err(|errno| anyhow!("errno {errno}"))?;
        Ok(connected.accepted_by)
    };
    ensure!(inbound()? == 15006);
    // A policy that cannot be carried out is refused, and the last good one stays.
    let excluded = ("traffic.sidecar.istio.io/excludeInterfaces", "eth0");
    lab.write_manifest("app", &manifest("app", &pod, &[excluded]))?;
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
/// what others allow.
fn verifiers_have_room() -> Result<()> {
    /// A quarter of BPF_COMPLEXITY_LIMIT_INSNS.
    const MOST: u32 = 250_000;
    let lab = Lab::new()?;
    let _agent = Agent::start(lab.places())?;
    let mut seen = 0;
    for program in loaded_programs() {
        let Ok(program) = program else { continue };
        let name = program.name_as_str().unwrap_or_default();
        // None before Linux 5.16.
        let Some(walked) = program.verified_instruction_count() else {
            continue;
        };
        if name.starts_with("st_") {
            ensure!(walked < MOST, "{name}: {walked} instructions");
            seen += 1;
        }
    }
    ensure!(seen >= 7, "{seen} programs");
    Ok(())
}

kernel_test!(a_node_without_ipv6);
/// `ipv6.disable=1`, as far as programs see it: there are no sockets of that family. What manifests for
/// all nodes say must do.
fn a_node_without_ipv6() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("app", 2)?;
    lab.write_manifest("app", &manifest("app", &pod, &[]))?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let wrapper = lab.dir().join("without-ipv6");
    fs::write(
        &wrapper,
        WITHOUT_IPV6.replace("SIDETRACK", &binary()?.display().to_string()),
    )?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
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
    let connected = pod
        .actor()?
        .dial(Dial::new(&APP, at(VIP, 80)))?
        .map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(connected.accepted_by == 15001, "{connected:?}");
    Ok(())
}

/// Has the kernel refuse sockets of AF_INET6 with EAFNOSUPPORT, by a seccomp filter.
const WITHOUT_IPV6: &str = r#"#!/usr/bin/python3
import ctypes, os, struct, sys

SOCKET = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
AF_INET6, EAFNOSUPPORT = 10, 97
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
rules = [
    (LOAD, 0, 0, 0),
    (EQUAL, 0, 3, SOCKET),
    (LOAD, 0, 0, 16),
    (EQUAL, 0, 1, AF_INET6),
    (RETURN, 0, 0, 0x00050000 | EAFNOSUPPORT),
    (RETURN, 0, 0, 0x7FFF0000),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter) == 0
os.execv("SIDETRACK", ["sidetrack"] + sys.argv[1:])
"#;
