//! What the clients of a server hold of its memory, by address.
//!
//! Invariants: all connections together hold no more than the server has; a client that finds it full gets
//! room from the client that holds most; a connection that the server itself works for is not dropped.

use std::{
    cmp::Ordering::{Equal, Greater, Less},
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

/// What a connection holds at least: the buffers of TLS and of a head.
pub const CONNECTION_BYTES: usize = 32 << 10;

/// A client that holds more than another takes from it only what has waited so many times as long.
const IDLE_FACTOR: u32 = 10;
/// How many wait for a place. Clients that have closed theirs count until it is their turn.
const QUEUE: usize = 64;
/// How long a new connection waits for a place.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two looks for one.
const PLACE_INTERVAL: Duration = Duration::from_millis(20);

/// The places of one server.
#[derive(Clone, Debug)]
pub struct Places {
    held: Arc<Mutex<Held>>,
    /// The networks of those that wait, at most [`QUEUE`].
    queue: Arc<Mutex<Vec<Holder>>>,
    freed: Arc<Notify>,
    /// Of those that wait, the first looks for a place.
    first: Arc<tokio::sync::Mutex<()>>,
}

/// What one connection holds, until it is dropped.
#[derive(Clone, Debug)]
pub struct Place(Arc<Entry>);

/// Resolves when the connection is to be dropped.
pub type Evicted = oneshot::Receiver<()>;

#[derive(Debug)]
struct Entry {
    places: Places,
    id: u64,
}

/// Who the server waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// For the client, who has not sent a request yet.
    Silent,
    /// For the client: for its next request, for the rest of one, or until it has read the answer.
    Waiting,
    /// For the server itself.
    Working,
}

/// What a holder holds, to be read without a search.
type Holding = Arc<AtomicUsize>;

#[derive(Debug)]
struct Connection {
    holders: [Holder; 2],
    /// What these hold.
    holding: [Holding; 2],
    bytes: usize,
    state: State,
    since: Instant,
    /// Dropped with the entry, which [`Evicted`] notices.
    _evict: oneshot::Sender<()>,
}

/// Whose connections are added up. IPv4 has one address where IPv6 has a network, of which a client may
/// have all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    /// Clients of a unix socket.
    Node,
    V6Network([u8; 8]),
    Address(IpAddr),
}

impl Holder {
    /// The network and the address of a client.
    fn of(client: Option<IpAddr>) -> [Self; 2] {
        let Some(client) = client.map(|client| client.to_canonical()) else {
            return [Self::Node; 2];
        };
        let network = match client {
            IpAddr::V4(_) => Self::Address(client),
            IpAddr::V6(address) => Self::V6Network(network(address)),
        };
        [network, Self::Address(client)]
    }
}

/// The /64.
fn network(address: Ipv6Addr) -> [u8; 8] {
    let mut network = [0; 8];
    network.copy_from_slice(&address.octets()[..8]);
    network
}

#[derive(Debug)]
struct Held {
    fresh: Duration,
    room: usize,
    used: usize,
    next: u64,
    connections: HashMap<u64, Connection>,
    by_holder: HashMap<Holder, Holding>,
}

impl Places {
    /// For this many connections, or fewer that hold more. `fresh` is as in [`Limits`](super::Limits).
    #[must_use]
    pub fn new(connections: usize, fresh: Duration) -> Self {
        Self {
            held: Arc::new(Mutex::new(Held::new(connections, fresh))),
            queue: Arc::default(),
            freed: Arc::default(),
            first: Arc::default(),
        }
    }

    /// A place for a new connection. It waits for one only if its client is at its quota, and
    /// gets `None` if none becomes free or too many wait.
    pub async fn admit(&self, client: Option<IpAddr>) -> Option<(Place, Evicted)> {
        let [network, _] = Holder::of(client);
        // Who comes later does not pass those of its own network that wait.
        let is_first = !self.queue.lock().contains(&network);
        if is_first && let Some(place) = self.enter(client) {
            return Some(place);
        }
        let _queued = self.queue(network)?;
        let wait = async {
            let _first = self.first.lock().await;
            loop {
                if let Some(place) = self.enter(client) {
                    return place;
                }
                // By age more of them may be dropped each time.
                let _ = timeout(PLACE_INTERVAL, self.freed.notified()).await;
            }
        };
        timeout(PLACE_TIMEOUT, wait).await.ok()
    }

    fn queue(&self, network: Holder) -> Option<Queued<'_>> {
        let mut queue = self.queue.lock();
        if queue.len() >= QUEUE {
            return None;
        }
        queue.push(network);
        Some(Queued(self, network))
    }

    /// A place for a new connection; `None` if its client is at its quota.
    #[must_use]
    pub fn enter(&self, client: Option<IpAddr>) -> Option<(Place, Evicted)> {
        let (evict, evicted) = oneshot::channel();
        let id = self.held.lock().enter(client, evict, Instant::now())?;
        let entry = Entry {
            places: self.clone(),
            id,
        };
        Some((Place(Arc::new(entry)), evicted))
    }
}

/// One that waits for a place.
struct Queued<'a>(&'a Places, Holder);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let Self(places, network) = self;
        let mut queue = places.queue.lock();
        if let Some(position) = queue.iter().position(|queued| queued == network) {
            queue.swap_remove(position);
        }
    }
}

impl Place {
    /// From now on the server waits for the client.
    pub fn waits(&self) {
        self.0.set(State::Waiting);
    }

    /// From now on the server works for the client.
    pub fn works(&self) {
        self.0.set(State::Working);
    }

    /// The address of its client, if it has one and the connection is still there.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        let held = self.0.places.held.lock();
        let [_, own] = held.connections.get(&self.0.id)?.holders;
        match own {
            Holder::Address(address) => Some(address),
            Holder::Node | Holder::V6Network(_) => None,
        }
    }

    /// What its client holds: all addresses of its network, and its own.
    #[must_use]
    pub fn holding(&self) -> [usize; 2] {
        let held = self.0.places.held.lock();
        let connection = held.connections.get(&self.0.id);
        connection.map_or([0; 2], Connection::holding)
    }

    /// The connection now holds this much in addition to its buffers; false if there is no room.
    #[must_use]
    pub fn holds(&self, bytes: usize) -> bool {
        let bytes = bytes + CONNECTION_BYTES;
        self.0
            .places
            .held
            .lock()
            .hold(self.0.id, bytes, Instant::now())
    }
}

impl Entry {
    fn set(&self, state: State) {
        if let Some(connection) = self.places.held.lock().connections.get_mut(&self.id) {
            connection.state = state;
            connection.since = Instant::now();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.places.held.lock().remove(self.id);
        self.places.freed.notify_one();
    }
}

impl Connection {
    /// What its network and its address hold.
    fn holding(&self) -> [usize; 2] {
        [0, 1].map(|of| self.holding[of].load(Ordering::Relaxed))
    }
}

impl Held {
    fn new(connections: usize, fresh: Duration) -> Self {
        Self {
            fresh,
            room: connections * CONNECTION_BYTES,
            used: 0,
            next: 0,
            connections: HashMap::new(),
            by_holder: HashMap::new(),
        }
    }

    fn enter(
        &mut self,
        client: Option<IpAddr>,
        evict: oneshot::Sender<()>,
        now: Instant,
    ) -> Option<u64> {
        let holders = Holder::of(client);
        if !self.make_room(CONNECTION_BYTES, holders, None, now) {
            return None;
        }
        let id = self.next;
        self.next += 1;
        let connection = Connection {
            holders,
            holding: holders.map(|holder| Arc::clone(self.by_holder.entry(holder).or_default())),
            bytes: 0,
            state: State::Silent,
            since: now,
            _evict: evict,
        };
        self.connections.insert(id, connection);
        self.account(id, CONNECTION_BYTES);
        Some(id)
    }

    fn hold(&mut self, id: u64, bytes: usize, now: Instant) -> bool {
        let Some(connection) = self.connections.get(&id) else {
            return false;
        };
        let holders = connection.holders;
        let more = bytes.saturating_sub(connection.bytes);
        if !self.make_room(more, holders, Some(id), now) {
            return false;
        }
        self.account(id, bytes);
        true
    }

    /// Drops connections until this much is free.
    fn make_room(
        &mut self,
        bytes: usize,
        newcomer: [Holder; 2],
        own: Option<u64>,
        now: Instant,
    ) -> bool {
        while self.used + bytes > self.room {
            let Some(dropped) = self.least_needed(newcomer, own, now) else {
                return false;
            };
            self.remove(dropped);
        }
        true
    }

    /// Of the client that holds most: the connection that has waited longest for it, first among those
    /// without a request.
    fn least_needed(&self, newcomer: [Holder; 2], own: Option<u64>, now: Instant) -> Option<u64> {
        let asked_for = newcomer.map(|holder| {
            let held = self.by_holder.get(&holder);
            held.map_or(0, |held| held.load(Ordering::Relaxed))
        });
        let waiting = self.connections.iter().filter_map(|(id, connection)| {
            let waited = now.saturating_duration_since(connection.since);
            let holding = connection.holding();
            let needed = match holding.cmp(&asked_for) {
                Greater => Duration::ZERO,
                Equal => self.fresh,
                Less => IDLE_FACTOR * self.fresh,
            };
            let working = connection.state == State::Working;
            let may_go = !working && own != Some(*id) && waited >= needed;
            let silent = connection.state == State::Silent;
            may_go.then_some(((holding, silent, waited), *id))
        });
        waiting.max().map(|(_, id)| id)
    }

    fn account(&mut self, id: u64, bytes: usize) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut connection.bytes, bytes);
        self.used = self.used - before + bytes;
        let [network, address] = connection.holders;
        let one = network == address;
        for (holding, holder) in connection
            .holding
            .iter()
            .zip([network, address])
            .skip(usize::from(one))
        {
            let held = holding.load(Ordering::Relaxed) - before + bytes;
            holding.store(held, Ordering::Relaxed);
            if held == 0 {
                self.by_holder.remove(&holder);
            }
        }
    }

    fn remove(&mut self, id: u64) {
        self.account(id, 0);
        self.connections.remove(&id);
    }
}

#[cfg(test)]
mod tests;
