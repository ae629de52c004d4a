//! Another program changes the datapath while the agent runs: the agent repairs it, or reports what is
//! wrong.

mod cgroups;
mod foreign_programs;
mod links;
mod namespace;
mod pins;
mod rows;

use std::{ops::RangeBounds, os::fd::OwnedFd};

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::{bpf_attach_type, bpf_insn, bpf_prog_type};
use lab::{
    actor::Actor,
    agent::Places,
    node::VIP,
    product::{Maps, Pins, sys},
    protocol::{APP, ROOT},
    sidecar,
};

use crate::fixture::{PodFixture, at};

/// What the log has before the text of a repair.
const REPAIR: &str = " WARN sidetrack_reconcile::core::repair: ";

/// A pod with a sidecar, enrolled.
fn enrolled_pod(annotations: &[(&str, &str)]) -> Result<(PodFixture, Actor)> {
    let fixture = PodFixture::new()?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(annotations)?;
    works(&fixture).context("before anything is done")?;
    Ok((fixture, sidecar))
}

/// Both directions go through the sidecar, which sees the original destination.
fn works(fixture: &PodFixture) -> Result<()> {
    outbound(fixture)?;
    let inbound = fixture.outside.connect(&ROOT, at("10.77.0.2", 80))?;
    ensure!(inbound.accepted_by == 15006, "inbound: {inbound:?}");
    Ok(())
}

fn outbound(fixture: &PodFixture) -> Result<()> {
    let outbound = fixture.client.connect(&APP, at(VIP, 80))?;
    ensure!(outbound.accepted_by == 15001, "outbound: {outbound:?}");
    ensure!(outbound.client.peer == at(VIP, 80), "{outbound:?}");
    ensure!(
        outbound.server.original_v4 == Ok(at(VIP, 80)),
        "{outbound:?}"
    );
    Ok(())
}

fn status(places: &Places) -> Result<serde_json::Value> {
    places.json(&["status", "-o", "json"])
}

fn repairs(fixture: &PodFixture) -> Result<u64> {
    let status = status(&fixture.agent.places)?;
    status["agent"]["repairs"].as_u64().context("a number")
}

/// Everything works again, so many lines of the log say so, and each repair in the log was counted
/// once.
fn was_repaired(fixture: &PodFixture, said: &str, times: impl RangeBounds<usize>) -> Result<()> {
    works(fixture)?;
    let what = format!("{said:?} is in the log, and every repair is counted");
    fixture
        .wait(&what, || {
            let counted = repairs(fixture)?;
            let log = fixture.agent.places.log();
            let lines: Vec<_> = log.lines().filter(|line| line.contains(REPAIR)).collect();
            let saying = lines.iter().filter(|line| line.contains(said)).count();
            Ok(times.contains(&saying) && lines.len() as u64 == counted)
        })
        .map(drop)
}

fn pins(fixture: &PodFixture) -> Result<Pins> {
    Pins::new(&fixture.lab.places().bpffs)
}

fn maps(fixture: &PodFixture) -> Result<Maps> {
    Maps::open(&pins(fixture)?)
}

fn cookie(fixture: &PodFixture) -> Result<u64> {
    fixture.agent.places.cookie("test/app")
}

/// `r0 = 1; exit`, for a hook.
fn foreign_program(name: &str, attach_type: bpf_attach_type) -> Result<OwnedFd> {
    let kind = bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR;
    passing(name, kind, attach_type)
}

fn passing(name: &str, kind: bpf_prog_type, attach_type: bpf_attach_type) -> Result<OwnedFd> {
    let mut set = bpf_insn {
        code: 0xb7,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm: 1,
    };
    let mut exit = set;
    exit.code = 0x95;
    exit.imm = 0;
    set.imm = 1;
    let program = sys::program_load(kind, Some(attach_type), name, &[set, exit]);
    program.context("load a program of another's")
}
