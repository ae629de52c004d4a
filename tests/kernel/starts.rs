//! Starts that fail leave what they found; starts on nodes in lockdown.

use std::{collections::BTreeSet, fs, process::ExitStatus};

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra, Places},
    command::{run, run_words},
    injected::with_istio_init,
    network::Lab,
};
use nix::sys::signal::Signal;

use crate::{doctor, fixture::PodFixture};

/// Starts an agent that ends by itself.
fn ended(places: &Places, extra: &Extra<'_>) -> Result<ExitStatus> {
    Agent::spawn_with(places, extra)?.wait()
}

/// The programs on the pods' cgroup.
fn attached(places: &Places) -> Result<String> {
    run_words(&[
        "bpftool",
        "cgroup",
        "show",
        &places.cgroup.to_string_lossy(),
    ])
}

kernel_test!(a_first_start_that_fails_leaves_nothing);
fn a_first_start_that_fails_leaves_nothing() -> Result<()> {
    let lab = Lab::new()?;
    let places = lab.places();
    // BPF_MAP_FREEZE: of what is loaded.
    let wrapper = doctor::refusing(&lab, "bpf 0=22 1")?;
    let refused = Extra {
        binary: Some(&wrapper),
        ..Extra::default()
    };
    ensure!(ended(places, &refused)?.code() == Some(1));
    ensure!(!places.pins().exists(), "pins remain");
    // The last of the hooks cannot be pinned: the others are attached by then.
    fs::create_dir_all(places.pins().join("links/setsockopt_new"))?;
    ensure!(ended(places, &Extra::default())?.code() == Some(1));
    let log = places.log();
    ensure!(log.contains("attach setsockopt to cgroup"), "{log}");
    ensure!(!places.pins().exists(), "pins remain");
    ensure!(!attached(places)?.contains("st_"), "{}", attached(places)?);
    Ok(())
}

kernel_test!(a_later_start_that_fails_changes_nothing);
fn a_later_start_that_fails_changes_nothing() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = lab::sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let places = fixture.lab.places().clone();
    let before = attached(&places)?;
    fixture.agent.end(Signal::SIGKILL)?;
    let wrapper = doctor::refusing(&fixture.lab, "bpf 0=22 1")?;
    let refused = Extra {
        binary: Some(&wrapper),
        ..Extra::default()
    };
    ensure!(ended(&places, &refused)?.code() == Some(1));
    // With the same numbers: no program was replaced.
    ensure!(
        attached(&places)? == before,
        "{before}{}",
        attached(&places)?
    );
    ensure!(fixture.accepted_by()? == 15001);
    fixture.agent = Agent::start(&places)?;
    places.wait_enrolled("test/app")?;
    ensure!(fixture.accepted_by()? == 15001);
    Ok(())
}

/// Ids of the programs that a process has loaded.
fn programs_of(pid: u32) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten() {
        // It may be closed by now.
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
        ids.extend(id.and_then(|id| id.trim().parse::<u32>().ok()));
    }
    Ok(ids)
}

kernel_test!(in_lockdown_no_program_reads_memory_by_address);
/// `lockdown=confidentiality` refuses programs that call bpf_probe_read_kernel where the verifier walks.
fn in_lockdown_no_program_reads_memory_by_address() -> Result<()> {
    let lab = Lab::new()?;
    for (variables, reads) in [
        (&[][..], true),
        (&[("SIDETRACK_WITHOUT", "read_kernel")][..], false),
    ] {
        let agent = Agent::start_with(lab.places(), &Extra::variables(variables))?;
        let ids = programs_of(agent.pid())?;
        let mut reading = BTreeSet::new();
        for id in &ids {
            let code = run(&format!("bpftool prog dump xlated id {id}"))?;
            if code.contains("bpf_probe_read_kernel") {
                reading.insert(run(&format!("bpftool prog show id {id}"))?);
            }
        }
        ensure!(ids.len() > 10, "only {ids:?}");
        ensure!(reading.is_empty() != reads, "{reading:?}");
    }
    Ok(())
}

kernel_test!(in_lockdown_queries_are_not_captured);
/// Without the owner of a datagram the sidecar's own queries would come back to it.
fn in_lockdown_queries_are_not_captured() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let agent = Agent::start_with(
        lab.places(),
        &Extra::variables(&[("SIDETRACK_WITHOUT", "read_kernel")]),
    )?;
    let all_servers = ["--redirect-dns", "--capture-all-dns"];
    lab.enroll_manifest("app", &with_istio_init(&pod, &all_servers, &[]))?;
    agent
        .places
        .wait_logged("who sends a datagram is unknown", 1)?;
    let programs = attached(lab.places())?;
    ensure!(!programs.contains("sendmsg"), "{programs}");
    Ok(())
}
