//! Live events for everybody who traces: one task reads the queue of the kernel programs while there are clients, and
//! gives a copy to each.
//!
//! Invariants: without a client nothing is read and the programs send nothing; a client that reads slowly loses events,
//! gets their number, and delays no other client.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use axum::{
    Router,
    body::Body,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::get,
};
use parking_lot::Mutex;
use sidetrack_common::event::Event;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, broadcast},
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::warn;

mod filter;

pub use self::filter::Filter;
use crate::api::{Process, TraceEvent, TraceLine};
use crate::observe::{
    events::{Clocks, described},
    snapshot::Snapshot,
    status::Status,
};
use sidetrack_datapath::kernel::{
    events::{Events, boot_time},
    pins::Pins,
};

/// How many may trace at a time.
const CLIENTS: usize = 8;
/// How often the queue is read.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Events per look, so that other clients of the agent are served in between.
const PER_LOOK: usize = 4_096;
/// Events that a client may be behind.
const BEHIND: usize = 8_192;
/// For how long the programs send events without being asked again.
const WANTED_TTL: Duration = Duration::from_secs(2);
/// How often they are asked.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// Sockets whose process is remembered, for their failure.
const REMEMBERED: usize = 8_192;

/// Traces for clients of the control socket.
#[derive(Debug)]
pub struct Tracer {
    pins: Pins,
    status: Arc<Status>,
    clients: Arc<Semaphore>,
    /// Of the task that reads; `None` while there is none.
    sender: Mutex<Option<broadcast::Sender<TraceLine>>>,
}

impl Tracer {
    /// The route of the control socket.
    pub fn routes(pins: Pins, status: Arc<Status>) -> Router {
        let tracer = Arc::new(Self {
            pins,
            status,
            clients: Arc::new(Semaphore::new(CLIENTS)),
            sender: Mutex::default(),
        });
        Router::new()
            .route("/v1/trace", get(trace))
            .with_state(tracer)
    }

    /// From now on. Starts the task that reads, if there is none.
    fn subscribe(self: &Arc<Self>) -> Result<broadcast::Receiver<TraceLine>> {
        let mut sender = self.sender.lock();
        if let Some(sender) = &*sender {
            return Ok(sender.subscribe());
        }
        let mut events = Events::open(&self.pins)?;
        // What remains of an earlier trace.
        events.take(usize::MAX, drop);
        let (new, receiver) = broadcast::channel(BEHIND);
        tokio::spawn(Arc::clone(self).read(events, new.clone()));
        *sender = Some(new);
        Ok(receiver)
    }

    /// Reads until no client listens.
    async fn read(self: Arc<Self>, mut events: Events, sender: broadcast::Sender<TraceLine>) {
        let result = self.read_for(&mut events, &sender).await;
        let stopped = events.want_until(0);
        if let Err(error) = result.and(stopped) {
            warn!("trace ends: {error:#}");
            *self.sender.lock() = None;
        }
    }

    async fn read_for(
        &self,
        events: &mut Events,
        sender: &broadcast::Sender<TraceLine>,
    ) -> Result<()> {
        let mut names = Names::default();
        let mut processes = Processes::default();
        let mut lost = events.lost()?;
        let mut asked: Option<Instant> = None;
        let mut looks = interval(POLL_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            {
                let mut current = self.sender.lock();
                if sender.receiver_count() == 0 {
                    *current = None;
                    return Ok(());
                }
            }
            if asked.is_none_or(|at| at.elapsed() > ASK_INTERVAL) {
                events.want_until(boot_time() + WANTED_TTL.as_nanos() as u64)?;
                asked = Some(Instant::now());
            }
            names.update(self.status.snapshot());
            let clocks = Clocks::now();
            events.take(PER_LOOK, |event| {
                let mut shown = described(&event, names.of(event.netns), &clocks);
                processes.complete(&event, &mut shown);
                // Fails only if all clients have gone meanwhile.
                let _ = sender.send(TraceLine::Event(Box::new(shown)));
            });
            let now = events.lost()?;
            if now > lost {
                let _ = sender.send(TraceLine::Lost(now - lost));
                lost = now;
            }
            looks.tick().await;
        }
    }
}

/// Names of pods by cookie.
#[derive(Default)]
struct Names {
    snapshot: Option<Arc<Snapshot>>,
    by_cookie: HashMap<u64, String>,
}

impl Names {
    fn update(&mut self, snapshot: Arc<Snapshot>) {
        if let Some(known) = &self.snapshot
            && Arc::ptr_eq(known, &snapshot)
        {
            return;
        }
        let of_pod =
            |pod: &crate::api::PodStatus| Some((pod.netns.as_ref()?.cookie, pod.full_name()));
        self.by_cookie = snapshot.pods.iter().filter_map(of_pod).collect();
        self.snapshot = Some(snapshot);
    }

    fn of(&self, cookie: u64) -> String {
        let name = self.by_cookie.get(&cookie).cloned();
        name.unwrap_or_else(|| format!("netns {cookie}"))
    }
}

/// Processes of redirected connections: the event of a failure does not have it.
#[derive(Default)]
struct Processes {
    by_socket: HashMap<u64, Process>,
    order: VecDeque<u64>,
}

impl Processes {
    fn complete(&mut self, event: &Event, shown: &mut TraceEvent) {
        if let (Some(process), true) = (&shown.process, event.capture_port != 0) {
            if self
                .by_socket
                .insert(event.cookie, process.clone())
                .is_none()
            {
                self.order.push_back(event.cookie);
            }
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_socket.remove(&oldest);
            }
        } else if shown.process.is_none() {
            shown.process = self.by_socket.get(&event.cookie).cloned();
        }
    }
}

async fn trace(State(tracer): State<Arc<Tracer>>, Query(filter): Query<Filter>) -> Response {
    let Ok(permit) = Arc::clone(&tracer.clients).try_acquire_owned() else {
        let text = format!("{CLIENTS} others trace already; end one of them");
        return (StatusCode::TOO_MANY_REQUESTS, text).into_response();
    };
    let receiver = match tracer.subscribe() {
        Ok(receiver) => receiver,
        Err(error) => {
            return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response();
        }
    };
    let client = Client {
        receiver,
        filter,
        _permit: permit,
    };
    let lines = futures_util::stream::unfold(client, |mut client| async move {
        let lines = client.next().await?;
        Some((Ok::<_, Infallible>(lines), client))
    });
    Body::from_stream(lines).into_response()
}

/// A client, until it leaves.
struct Client {
    receiver: broadcast::Receiver<TraceLine>,
    filter: Filter,
    _permit: OwnedSemaphorePermit,
}

impl Client {
    /// The next lines: as many as there are, so that each write carries many. `None` at the end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        let mut next = match self.receiver.recv().await {
            Ok(line) => Ok(line),
            Err(broadcast::error::RecvError::Lagged(lost)) => Ok(TraceLine::Lost(lost)),
            Err(broadcast::error::RecvError::Closed) => return None,
        };
        while let Ok(line) = next {
            if self.filter.wants(&line) && serde_json::to_writer(&mut text, &line).is_ok() {
                text.push(b'\n');
            }
            next = match self.receiver.try_recv() {
                Err(broadcast::error::TryRecvError::Lagged(lost)) => Ok(TraceLine::Lost(lost)),
                other => other,
            };
        }
        Some(text)
    }
}
