//! Searches for listeners that run at once.

use std::{
    net::TcpListener,
    os::fd::AsFd as _,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    network::Lab,
    product::{Datapath, LogLevel, Pins, sys},
};
use sidetrack_common::{
    addr::Family,
    conn::{ListenerKey, WantedListener},
};

/// Above the cookie of every namespace there is.
const UNUSED_COOKIE: u64 = 1 << 60;

kernel_test!(searches_do_not_see_each_other);
/// One is to put a socket into the listener map, the other is for a descriptor of the same socket.
fn searches_do_not_see_each_other() -> Result<()> {
    const SO_COOKIE: i32 = 57;
    const ROUNDS: usize = 200;
    const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
    let lab = Lab::new()?;
    let places = lab.places();
    let pins = Pins::new(&places.bpffs)?;
    let (datapath, _log) = Datapath::open(pins, &places.cgroup, None, LogLevel::WARNINGS)?;
    let adoption = &datapath.adoption;
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let cookie = sys::socket_option_u64(socket.as_fd(), SO_COOKIE)?;
    let wanted = WantedListener {
        netns: UNUSED_COOKIE,
        port: 15006,
        v4: 1,
        ..bytemuck::Zeroable::zeroed()
    };
    let key = ListenerKey {
        netns: UNUSED_COOKIE,
        family: Family::V4 as u16,
        port: 15006,
        slot: 0,
    };
    let pids = [std::process::id() as i32];
    let until = Instant::now() + WAIT_TIMEOUT;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let finding = scope.spawn(|| -> Result<usize> {
            let mut found = 0;
            while !done.load(Ordering::Relaxed) {
                let sockets = adoption.find(&[cookie], &pids, until)?;
                ensure!(sockets.len() == 1, "not found: {sockets:?}");
                found += 1;
            }
            Ok(found)
        });
        let adopted = (0..ROUNDS).try_for_each(|round| {
            let missed = adoption.run(&[(cookie, wanted)], Some(&pids), until)?;
            let stored = adoption.listeners.get(&key)?;
            ensure!(
                missed == 0 && stored == Some(cookie),
                "round {round}: {missed} missed, {stored:?} stored"
            );
            adoption.listeners.remove(&key)?;
            Ok(())
        });
        done.store(true, Ordering::Relaxed);
        let found = finding.join().map_err(|_| anyhow!("the search panicked"))?;
        adopted?;
        ensure!(found.context("the other search")? > 0, "it found nothing");
        Ok(())
    })
}
