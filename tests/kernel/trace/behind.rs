//! A trace that is not read fast enough says how many connections it has missed: what it has shown and what it says
//! is missing are all there were.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{
    node::VIP,
    protocol::{APP, Dial},
    trace::Trace,
};
use nix::sys::signal::Signal;

use crate::fixture::{PodFixture, at};

/// Connections that are refused: two events each, together more than a client may be behind.
const REFUSED: u64 = 8_000;
/// For everything to be shown.
const SHOWN: Duration = Duration::from_secs(20);

kernel_test!(a_trace_that_is_behind_says_what_it_missed);
fn a_trace_that_is_behind_says_what_it_missed() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let trace = Trace::start(fixture.lab.places(), &[], fixture.lab.dir())?;
    trace.signal(Signal::SIGSTOP)?;
    let begun = Instant::now();
    for result in fixture
        .client
        .dial_all(vec![Dial::new(&APP, at(VIP, 80)); REFUSED as usize])?
    {
        ensure!(result.is_err(), "{result:?}");
    }
    let took = begun.elapsed();
    trace.signal(Signal::SIGCONT)?;
    let shown = trace.wait(2 * REFUSED, SHOWN)?;
    let (events, missing) = (shown.events(), shown.lost);
    ensure!(
        missing > 0,
        "{events} events in {took:?}, and none is missing"
    );
    ensure!(
        events + missing == 2 * REFUSED,
        "{events} events and {missing} missing ones, of {REFUSED} connections in {took:?}"
    );
    Ok(())
}
