//! What a service manager hears of an agent, as systemd would.

use std::{
    os::unix::net::UnixDatagram,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use lab::{
    agent::{Agent, Extra, held::HeldThread},
    network::Lab,
};
use nix::sys::signal::Signal;

/// What is allowed between two signs of life.
const WATCHDOG: Duration = Duration::from_secs(1);

/// Longer than a reconciler may be silent.
const SILENT: Duration = Duration::from_secs(12);

fn receive(socket: &UnixDatagram, timeout: Duration) -> Result<Option<String>> {
    socket.set_read_timeout(Some(timeout))?;
    let mut bytes = [0; 256];
    match socket.recv(&mut bytes) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(&bytes[..length]).into_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Fails unless this comes, in time.
fn wait_for(socket: &UnixDatagram, state: &str, timeout: Duration) -> Result<()> {
    let until = Instant::now() + timeout;
    while let Some(remaining) = until.checked_duration_since(Instant::now()) {
        if receive(socket, remaining.max(Duration::from_millis(1)))?.as_deref() == Some(state) {
            return Ok(());
        }
    }
    bail!("no {state:?} within {timeout:?}")
}

kernel_test!(ready_alive_and_ending);
fn ready_alive_and_ending() -> Result<()> {
    let lab = Lab::new()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path)?;
    let path = path.display().to_string();
    let allowed = WATCHDOG.as_micros().to_string();
    let mut agent = Agent::start_with(
        lab.places(),
        &Extra::variables(&[("NOTIFY_SOCKET", &path), ("WATCHDOG_USEC", &allowed)]),
    )?;
    wait_for(&socket, "READY=1\n", WATCHDOG)?;
    for _ in 0..3 {
        wait_for(&socket, "WATCHDOG=1\n", WATCHDOG)?;
    }
    // A reconciler that hangs: systemd would start another agent.
    let held = HeldThread::hold(agent.pid(), "reconciler")?;
    let until = Instant::now() + SILENT;
    while Instant::now() < until {
        receive(&socket, WATCHDOG)?;
    }
    let heard = receive(&socket, WATCHDOG * 2)?;
    ensure!(heard.is_none(), "{heard:?} of an agent that hangs");
    drop(held);
    wait_for(&socket, "WATCHDOG=1\n", WATCHDOG * 3)?;
    agent.end(Signal::SIGTERM)?;
    wait_for(&socket, "STOPPING=1\n", WATCHDOG)
}
