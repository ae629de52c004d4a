//! SYNs to a sidecar that hangs, of both families. They have handshake rows that only the end of their sockets
//! takes away. A large flood has more of them than one pod may have; the other pods must not notice.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use lab::{helper::Helper, protocol::APP, wait::eventually};
use sidetrack_common::names::HANDSHAKE_QUOTA;

use super::{between, more};
use crate::{
    environment::Environment,
    inventory::handshakes,
    targets::{VIP, VIP6, WEB},
    wire::{Flooded, Work},
};

/// Processes of a small flood, and SYNs of each per family. They are sent again at the same time. A processor
/// queues 1,000 packets (`net.core.netdev_max_backlog`), and drops further ones of any pod.
const SMALL: (usize, usize) = (1, 400);
/// Of one that would fill the table if it were let; a process may not have all those sockets.
const LARGE: (usize, usize) = (4, 8250);
/// How long rows may take to go after their sockets.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// What floods came to.
#[derive(Debug, Default)]
pub struct Floods {
    /// Small ones.
    pub small: AtomicU64,
    /// Those that used their pod's quota.
    pub large: AtomicU64,
    /// Connections begun in them.
    pub begun: AtomicU64,
    /// Refused in them.
    pub refused: AtomicU64,
}

impl Floods {
    /// Floods now and then; at the times `large` with more than a pod may have.
    pub fn run(&self, environment: &Environment, mut rng: Rng, large: &[Duration]) -> Result<()> {
        let start = Instant::now();
        let mut due = large.iter();
        let mut next = due.next();
        while environment.continues() {
            if next.is_some_and(|at| start.elapsed() >= *at) {
                next = due.next();
                let flooded = self.one(environment, LARGE, &mut rng)?;
                wait_gone(environment)?;
                // A few more may pass the check at the same time.
                let most = HANDSHAKE_QUOTA as usize + 16;
                if flooded.refused == 0 || flooded.pending > most {
                    bail!("a quota of {HANDSHAKE_QUOTA} rows let {flooded:?} through");
                }
                more(&self.large);
            } else {
                let flooded = self.one(environment, SMALL, &mut rng)?;
                if flooded.refused > 0 {
                    bail!("a small flood was refused: {flooded:?}");
                }
                more(&self.small);
            }
            environment.pause(between(&mut rng, 1000, 6000));
        }
        Ok(())
    }

    fn one(
        &self,
        environment: &Environment,
        (processes, each): (usize, usize),
        rng: &mut Rng,
    ) -> Result<Flooded> {
        let to = [VIP, VIP6]
            .map(|ip| SocketAddr::new(ip.parse().expect("an address"), WEB))
            .to_vec();
        let work = Work::Flood { to, each };
        let workers = (0..processes)
            .map(|_| Helper::start_self(&environment.hanging, &APP, &work))
            .collect::<Result<Vec<_>>>()?;
        let mut flooded = Flooded::default();
        for worker in &workers {
            let part: Flooded = worker.hear()?;
            flooded.pending += part.pending;
            flooded.refused += part.refused;
            flooded.failed += part.failed;
        }
        if flooded.failed > 0 {
            bail!("connections of a flood failed otherwise than refused: {flooded:?}");
        }
        environment.pause(between(rng, 0, 1500));
        // Killed with everything it has begun.
        drop(workers);
        let begun = (flooded.pending + flooded.refused) as u64;
        self.begun.fetch_add(begun, Ordering::Relaxed);
        self.refused
            .fetch_add(flooded.refused as u64, Ordering::Relaxed);
        Ok(flooded)
    }
}

/// Waits until there is room again: both the rows and the programs' own count of them.
fn wait_gone(environment: &Environment) -> Result<()> {
    eventually(WAIT_TIMEOUT, || {
        let (rows, count) = handshakes(&environment.places)?;
        let few = u64::from(HANDSHAKE_QUOTA / 2);
        ensure!(
            rows < few && count < few as i64,
            "{rows} handshake rows, counted {count}, after their sockets have gone"
        );
        Ok(())
    })
}
