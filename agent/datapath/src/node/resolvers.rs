//! Reads the servers of pods' resolv.conf files, and follows them: by the helper, each pod's at most once in an interval.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use sidetrack_common::ids::NetnsCookie;
use tokio::{sync::mpsc, time::timeout};

use crate::{foreign_files, netns::resolv_conf::ResolvConf};

/// How often a pod's file is read.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// How long the reconciler waits for a pod's first servers. Until they are known all queries are captured.
const FIRST_TIMEOUT: Duration = Duration::from_millis(200);
/// How long it waits for none after one that was not read in this time: pods may have any number of slow files.
const PAUSE: Duration = Duration::from_secs(5);

/// What was read for a pod.
#[derive(Debug)]
struct Answer {
    cookie: NetnsCookie,
    /// When the read began.
    began: Instant,
    servers: io::Result<Vec<IpAddr>>,
}

/// The reads.
#[derive(Debug)]
pub struct Resolvers {
    /// The pods whose files are being read.
    running: Arc<Mutex<BTreeSet<NetnsCookie>>>,
    /// Until when nothing waits for first servers.
    paused_until: Option<Instant>,
    answers: (
        mpsc::UnboundedSender<Answer>,
        mpsc::UnboundedReceiver<Answer>,
    ),
    /// When a read of a pod's file last began, and where.
    followed: BTreeMap<NetnsCookie, (Instant, ResolvConf)>,
}

impl Default for Resolvers {
    fn default() -> Self {
        Self {
            running: Arc::default(),
            paused_until: None,
            answers: mpsc::unbounded_channel(),
            followed: BTreeMap::new(),
        }
    }
}

impl Resolvers {
    /// Reads a pod's servers for the first time. `None` if that takes too long, or the file cannot be read: what is not known
    /// is captured.
    pub async fn first(
        &mut self,
        holder: &str,
        cookie: NetnsCookie,
        source: ResolvConf,
    ) -> Option<Vec<IpAddr>> {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let is_awaited = source.is_awaited();
        // What is read for an earlier enrollment may be of an earlier file.
        self.followed.remove(&cookie);
        self.read_for(holder, cookie, &source, now, sender);
        let answered = timeout(FIRST_TIMEOUT, receiver.recv()).await;
        if answered.is_err() {
            self.paused_until = Some(Instant::now() + PAUSE);
        }
        let servers = answered.ok()??.servers;
        servers
            .inspect_err(|problem| {
                if !(is_awaited && problem.kind() == io::ErrorKind::NotFound) {
                    tracing::warn!(%cookie, "read the pod's resolv.conf: {problem}");
                }
            })
            .ok()
    }

    /// Those of these pods whose files are to be read now.
    pub fn due(&mut self, pods: BTreeSet<NetnsCookie>) -> BTreeSet<NetnsCookie> {
        self.followed.retain(|cookie, _| pods.contains(cookie));
        let now = Instant::now();
        let is_due = |cookie: &NetnsCookie| {
            let followed = self.followed.get(cookie);
            followed.is_none_or(|(at, _)| *at + READ_INTERVAL <= now)
        };
        pods.into_iter().filter(is_due).collect()
    }

    /// Where a pod's file was the last time.
    pub fn last(&self, cookie: NetnsCookie) -> Option<&ResolvConf> {
        self.followed.get(&cookie).map(|(_, source)| source)
    }

    /// Reads a pod's file. The read counts for this holder.
    pub fn start(&mut self, holder: &str, cookie: NetnsCookie, source: ResolvConf) {
        let sender = self.answers.0.clone();
        let began = Instant::now();
        self.read_for(holder, cookie, &source, began, sender);
        self.followed.insert(cookie, (began, source));
    }

    /// What was read since the last call. A file that cannot be read changes nothing.
    pub fn read(&mut self) -> Vec<(NetnsCookie, Vec<IpAddr>)> {
        let mut all = Vec::new();
        while let Ok(answer) = self.answers.1.try_recv() {
            let followed = self.followed.get(&answer.cookie);
            if followed.is_some_and(|(began, _)| *began == answer.began) {
                all.extend(answer.servers.ok().map(|servers| (answer.cookie, servers)));
            }
        }
        all
    }

    fn read_for(
        &self,
        holder: &str,
        cookie: NetnsCookie,
        source: &ResolvConf,
        began: Instant,
        sender: mpsc::UnboundedSender<Answer>,
    ) {
        // One that is not started is due again.
        if !self.running.lock().insert(cookie) {
            return;
        }
        let running = Arc::clone(&self.running);
        foreign_files::start(holder, source, move |outcome| {
            running.lock().remove(&cookie);
            let _ = sender.send(Answer {
                cookie,
                began,
                servers: outcome.map(|(servers, _)| servers),
            });
        });
    }
}

#[cfg(test)]
mod tests;
