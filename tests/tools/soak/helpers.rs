//! Running worker processes, as seen from outside.

use std::{sync::Arc, thread};

use anyhow::Result;
use lab::{helper::Helper, network::PodNet, protocol::Identity};
use parking_lot::Mutex;

use crate::{
    account::Account,
    wire::{Dialed, Order, Work},
};

/// Starts one that serves, and waits until it does.
pub fn serve(pod: &PodNet, owner: &Identity, work: Work) -> Result<Helper> {
    let worker = Helper::start_self(pod, owner, work)?;
    worker.hear::<String>()?;
    Ok(worker)
}

/// A process that dials, and the reader of its reports.
#[derive(Debug)]
pub struct Dialer {
    worker: Arc<Helper>,
    reader: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Dialer {
    /// Starts one; what it reports goes into the account.
    pub fn start(
        pod: &PodNet,
        owner: &Identity,
        work: Work,
        account: &Arc<Account>,
    ) -> Result<Self> {
        let worker = Arc::new(Helper::start_self(pod, owner, work)?);
        let (reports, account) = (Arc::clone(&worker), Arc::clone(account));
        let reader = thread::spawn(move || {
            while let Some(report) = reports.next() {
                match report {
                    Ok(Dialed::Ended(report)) => account.enter(&report),
                    Ok(Dialed::Hangs(hanging)) => account.examine(hanging),
                    Err(error) => account.fail(format!("a dialler: {error:#}")),
                }
            }
        });
        Ok(Self {
            worker,
            reader: Mutex::new(Some(reader)),
        })
    }

    /// Sends an order.
    pub fn send(&self, order: &Order) -> Result<()> {
        self.worker.send(order)
    }

    /// Waits until it has ended by itself; all it has done is in the account then.
    pub fn wait(&self) {
        let reader = self.reader.lock().take();
        reader.map(thread::JoinHandle::join);
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        // The reader has the worker as well, and ends after it.
        let _ = self.worker.kill();
    }
}
