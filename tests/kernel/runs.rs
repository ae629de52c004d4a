//! What the two programs of an inbound lookup pass to each other is for one run of them.

use std::{fs, os::fd::AsFd as _};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::run_words,
    product::{Pins, sys},
    protocol::{Dial, ROOT},
    sidecar,
};
use serde_json::Value;
use sidetrack_common::names;

use crate::fixture::{PodFixture, at};

kernel_test!(another_run_gets_no_listener_of_a_pod);
/// A query by sock_diag is interrupted between the two programs, by a packet or a query of another pod: it finds
/// what that one has stored, for that one's run.
fn another_run_gets_no_listener_of_a_pod() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let arrived = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(arrived.is_ok_and(|it| it.accepted_by == 15006));
    let pins = Pins::new(&fixture.agent.places.bpffs)?;
    let cookie = fixture.agent.places.cookie("test/app")?;
    // As the pod has stored it on every CPU.
    let passed = sys::open_pin(&pins.map(names::INBOUND_NETNS))?;
    let size = sys::map_info(passed.as_fd())?.value_size as usize;
    let mut stored = Vec::new();
    for _ in 0..cpus()? {
        stored.extend(cookie.to_ne_bytes());
        stored.resize(stored.len().next_multiple_of(size), 0);
    }
    sys::map_update(passed.as_fd(), &0_u32.to_ne_bytes(), &stored, 0)?;
    let programs = sys::open_pin(&pins.map(names::INBOUND_PROGRAM))?;
    let mut id = [0; 4];
    ensure!(sys::map_lookup(
        programs.as_fd(),
        &0_u32.to_ne_bytes(),
        &mut id
    )?);
    let dir = fixture.lab.dir();
    let (ctx_in, ctx_out) = (dir.join("ctx-in"), dir.join("ctx-out"));
    fs::write(&ctx_in, lookup())?;
    let ran = run_words(&[
        "bpftool",
        "-j",
        "prog",
        "run",
        "id",
        &u32::from_ne_bytes(id).to_string(),
        "ctx_in",
        &ctx_in.to_string_lossy(),
        "ctx_out",
        &ctx_out.to_string_lossy(),
        "repeat",
        "1",
    ])?;
    let ran: Value = serde_json::from_str(&ran).context("bpftool's JSON")?;
    let selected = fs::read(&ctx_out)?;
    let selected = selected.first_chunk::<8>().context("a context")?;
    ensure!(
        ran["retval"] == 0 && *selected == [0; 8],
        "a listener of the pod: {ran}, {selected:x?}"
    );
    Ok(())
}

fn cpus() -> Result<usize> {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = possible.trim().rsplit(['-', ',']).next().unwrap_or("0");
    Ok(last.parse::<usize>()? + 1)
}

/// `struct bpf_sk_lookup` of linux/bpf.h: a SYN to port 80 of the pod.
fn lookup() -> Vec<u8> {
    const AF_INET: u32 = 2;
    const IPPROTO_TCP: u32 = 6;
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_ne_bytes()).collect() };
    let address = |octets: [u8; 4]| u32::from_ne_bytes(octets);
    [
        words(&[0, 0, AF_INET, IPPROTO_TCP, address([10, 77, 0, 254])]),
        words(&[0; 4]),
        40_000_u16.to_be_bytes().to_vec(),
        vec![0; 2],
        words(&[address([10, 77, 0, 2])]),
        words(&[0; 4]),
        // The port, the interface (which has to be 0), and what pads it.
        words(&[80, 0, 0]),
    ]
    .concat()
}
