//! What doctor says of a node, against what an agent then does on it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra},
    network::Lab,
};

use super::{Away, CASES, doctor, wrapper};

/// What no agent starts without, beside [`CASES`].
const MORE: [Away; 5] = [
    // BPF_MAP_UPDATE_ELEM, BPF_OBJ_GET, BPF_OBJ_GET_INFO_BY_FD, BPF_BTF_LOAD
    Away::Call("bpf 0=2 1"),
    Away::Call("bpf 0=7 1"),
    Away::Call("bpf 0=15 1"),
    Away::Call("bpf 0=18 1"),
    Away::Directory("/sys/fs/cgroup"),
];

/// What only an agent needs that takes over.
const LATER: &str = "bpf 0=29 1";

kernel_test!(an_agent_starts_only_where_doctor_says_so);
fn an_agent_starts_only_where_doctor_says_so() -> Result<()> {
    let lab = Lab::new()?;
    for away in CASES.iter().map(|(away, _)| away).chain(&MORE) {
        try_without(&lab, away).with_context(|| format!("without {away:?}"))?;
    }
    Ok(())
}

/// An agent that ends has removed what it made, as far as it may.
fn try_without(lab: &Lab, away: &Away) -> Result<()> {
    let places = lab.places();
    let answer = away.applied(&doctor(places)?, &places.bpffs).output()?;
    let wrapper = wrapper(lab, away)?;
    let extra = Extra {
        binary: Some(&wrapper),
        ..Extra::default()
    };
    fs::write(&places.log, "")?;
    let agent = Agent::start_with(places, &extra);
    let is_needed_later = matches!(away, Away::Call(LATER));
    ensure!(
        agent.is_ok() == answer.status.success() || is_needed_later,
        "doctor: {}, the agent: {agent:?}",
        String::from_utf8_lossy(&answer.stdout)
    );
    if agent.is_err() {
        ensure!(!places.pins().exists(), "pins remain: {}", places.log());
    }
    drop(agent);
    places.json(&["cleanup", "-o", "json"])?;
    Ok(())
}
