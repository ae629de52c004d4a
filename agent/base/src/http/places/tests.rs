//! Who gets a place, and whose connection is dropped for it.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::sleep,
};

use super::{CONNECTION_BYTES, Evicted, Held, IDLE_FACTOR, Place, Places, State};

const MOMENT: Duration = Duration::from_millis(1);
const FRESH_TIME: Duration = Duration::from_millis(500);

/// A server whose clock the test has.
struct Server {
    held: Held,
    now: Instant,
    receivers: Vec<(u64, Evicted)>,
}

impl Server {
    fn new(connections: usize) -> Self {
        Self {
            held: Held::new(connections, FRESH_TIME),
            now: Instant::now(),
            receivers: Vec::new(),
        }
    }

    /// A new connection, a moment after the one before.
    fn enter(&mut self, client: &str) -> Option<u64> {
        self.now += MOMENT;
        let client: IpAddr = client.parse().expect("an address");
        let (evict, evicted) = oneshot::channel();
        let id = self.held.enter(Some(client), evict, self.now)?;
        self.receivers.push((id, evicted));
        Some(id)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn set(&mut self, id: u64, state: State) {
        let connection = self.held.connections.get_mut(&id).expect("it is there");
        connection.state = state;
        connection.since = self.now;
    }

    /// Connections that were dropped, in the order in which they had come.
    fn dropped(&mut self) -> Vec<u64> {
        let all = self.receivers.iter_mut();
        all.filter_map(|(id, evicted)| {
            (evicted.try_recv() == Err(TryRecvError::Closed)).then_some(*id)
        })
        .collect()
    }
}

#[test]
fn the_oldest_of_the_biggest_holder_makes_room() {
    let mut server = Server::new(4);
    let first = server.enter("10.0.0.9").unwrap();
    let greedy: Vec<u64> = (0..3).map(|_| server.enter("10.0.0.1").unwrap()).collect();
    assert!(server.dropped().is_empty());
    server.enter("10.0.0.2").unwrap();
    assert_eq!(server.dropped(), [greedy[0]]);
    // Not the first connection, which is older.
    server.enter("10.0.0.3").unwrap();
    assert_eq!(server.dropped(), [greedy[0], greedy[1]]);
    assert!(server.held.connections.contains_key(&first));
}

#[test]
fn a_flood_from_one_client_is_refused_and_others_are_not() {
    // Those that have waited are dropped for new ones.
    let mut steady = Server::new(64);
    for _ in 0..1000 {
        steady.pass(FRESH_TIME / 64);
        assert!(steady.enter("10.0.0.1").is_some());
    }
    let mut at_once = Server::new(64);
    let flood = |server: &mut Server| {
        server.now -= MOMENT;
        server.enter("10.0.0.1").is_some()
    };
    assert_eq!((0..1000).filter(|_| flood(&mut at_once)).count(), 64);
    for number in 0..20 {
        let client = format!("10.0.1.{number}");
        assert!(at_once.enter(&client).is_some(), "{client}");
    }
}

#[test]
fn silent_connections_go_before_idle_ones_and_those_before_none() {
    let mut server = Server::new(3);
    let ids: Vec<u64> = (0..3).map(|_| server.enter("10.0.0.1").unwrap()).collect();
    server.set(ids[0], State::Working);
    server.set(ids[1], State::Waiting);
    server.pass(FRESH_TIME);
    server.enter("10.0.0.1").unwrap();
    assert_eq!(server.dropped(), [ids[2]]);
    server.enter("10.0.0.2").unwrap();
    // The newest of the client is still silent.
    assert_eq!(server.dropped().len(), 2);
    assert!(server.held.connections.contains_key(&ids[1]));
    let mut working = Server::new(2);
    for _ in 0..2 {
        let id = working.enter("10.0.0.1").unwrap();
        working.set(id, State::Working);
    }
    working.pass(10 * FRESH_TIME);
    assert!(working.enter("10.0.0.2").is_none());
}

/// A client with more connections than others takes none from them as long as they are new.
#[test]
fn a_bigger_holder_takes_only_what_is_not_used() {
    let mut server = Server::new(4);
    let small = server.enter("10.0.0.2").unwrap();
    for _ in 0..3 {
        let id = server.enter("10.0.0.1").unwrap();
        server.set(id, State::Working);
    }
    assert!(server.enter("10.0.0.1").is_none());
    server.pass(FRESH_TIME);
    assert!(server.enter("10.0.0.1").is_none());
    assert!(server.dropped().is_empty());
    server.pass(IDLE_FACTOR * FRESH_TIME);
    assert!(server.enter("10.0.0.1").is_some());
    assert_eq!(server.dropped(), [small]);
}

#[test]
fn addresses_of_one_network_are_one_holder() {
    let mut server = Server::new(8);
    for number in 0..6 {
        server.enter(&format!("fd00:1::{number}")).unwrap();
    }
    for _ in 0..2 {
        server.enter("fd00:2::1").unwrap();
    }
    for _ in 0..2 {
        server.enter("fd00:2::1").unwrap();
    }
    let dropped = server.dropped();
    assert_eq!(dropped, [0, 1], "of the first network");
    // In a network the address that has most loses first.
    let mut server = Server::new(4);
    let quiet = server.enter("fd00:1::2").unwrap();
    for _ in 0..3 {
        server.enter("fd00:1::1").unwrap();
    }
    server.enter("fd00:1::3").unwrap();
    assert!(server.held.connections.contains_key(&quiet));
    assert_eq!(server.dropped(), [1]);
}

#[test]
fn mapped_addresses_are_those_of_ipv4() {
    let mut server = Server::new(4);
    for number in 0..3 {
        // One /64 and three clients.
        server.enter(&format!("::ffff:10.0.0.{number}")).unwrap();
    }
    server.enter("10.0.0.1").unwrap();
    server.enter("::ffff:10.0.0.7").unwrap();
    assert_eq!(server.dropped(), [1], "10.0.0.1 has two");
}

#[test]
fn what_is_held_counts_and_not_how_many_hold_it() {
    let mut server = Server::new(8);
    let many: Vec<u64> = (0..3).map(|_| server.enter("10.0.0.1").unwrap()).collect();
    let one = server.enter("10.0.0.2").unwrap();
    let now = server.now;
    assert!(server.held.hold(one, 5 * CONNECTION_BYTES, now));
    assert_eq!(server.held.used, 8 * CONNECTION_BYTES);
    server.enter("10.0.0.3").unwrap();
    assert_eq!(server.dropped(), [one]);
    // A connection does not make room for itself, and has no more than there is.
    assert!(!server.held.hold(many[0], 9 * CONNECTION_BYTES, now));
    assert!(!server.held.hold(one, CONNECTION_BYTES, now), "it is gone");
}

/// As in the kernel's queue, but behind no other client.
#[tokio::test]
async fn a_client_at_its_quota_waits_a_moment() {
    let places = Places::new(2, FRESH_TIME);
    let client = Some("10.0.0.1".parse().expect("an address"));
    let [first, second] = [(), ()].map(|()| places.enter(client).expect("a place"));
    first.0.works();
    second.0.works();
    let leave = async {
        sleep(Duration::from_millis(50)).await;
        drop(first);
    };
    let (admitted, ()) = tokio::join!(places.admit(client), leave);
    let (third, _) = admitted.expect("the first one's place");
    third.works();
    assert!(places.admit(client).await.is_none());
}

#[test]
fn nothing_remains_of_those_who_have_gone() {
    let places = Places::new(2, FRESH_TIME);
    let client = Some("fd00::1".parse().unwrap());
    let (place, _evicted) = places.enter(client).unwrap();
    assert!(place.holds(1000));
    let other: Place = place.clone();
    drop(place);
    assert_eq!(places.held.lock().connections.len(), 1);
    other.works();
    drop(other);
    let held = places.held.lock();
    assert_eq!((held.used, held.by_holder.len()), (0, 0));
    assert!(held.connections.is_empty());
}

#[tokio::test]
async fn who_comes_later_does_not_pass_its_neighbors_that_wait() {
    let places = Places::new(1, FRESH_TIME);
    let [one, another]: [Option<IpAddr>; 2] =
        ["10.0.0.1", "10.0.0.2"].map(|client| Some(client.parse().expect("an address")));
    let first = places.admit(one).await.expect("a place");
    let waiting = places.clone();
    let waits = tokio::spawn(async move { waiting.admit(one).await });
    sleep(MOMENT).await;
    drop(first);
    // The one that waits has not run since the place is free.
    let later = places.admit(one).now_or_never();
    assert!(later.is_none(), "it passed");
    let place = waits.await.expect("its end").expect("a place");
    drop(place);
    assert!(places.admit(another).await.is_some());
}
