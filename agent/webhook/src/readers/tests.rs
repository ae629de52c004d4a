//! Who is read when.

use std::{
    future::Future,
    sync::mpsc::{self, Sender},
    time::Duration,
};

use tokio::time::{sleep, timeout};

use super::Readers;
use sidetrack_base::http::places::{Place, Places};

fn place() -> Place {
    let places = Places::new(1, Duration::ZERO);
    places.enter(None).expect("a place").0
}

/// Something to read that lasts until the test says so.
fn stuck() -> (Sender<()>, impl FnOnce() -> bool + Send + 'static) {
    let (end, ended) = mpsc::channel();
    (end, move || ended.recv().is_ok())
}

async fn is_soon<T>(done: impl Future<Output = T>) -> Option<T> {
    timeout(Duration::from_secs(5), done).await.ok()
}

#[tokio::test]
async fn large_bodies_leave_a_thread_for_small_ones() {
    let readers = Readers::default();
    let place = place();
    let (first, body) = stuck();
    let (second, other) = stuck();
    let large = async {
        tokio::join!(
            readers.read(&place, true, body),
            readers.read(&place, true, other)
        )
    };
    let small = async {
        sleep(Duration::from_millis(20)).await;
        let read = is_soon(readers.read(&place, false, || 7)).await;
        first.send(()).expect("it waits");
        second.send(()).expect("it waits");
        read
    };
    let (large, small) = tokio::join!(large, small);
    assert_eq!((large, small), ((true, true), Some(7)));
}

#[tokio::test]
async fn who_waits_no_longer_is_not_read_and_who_is_read_keeps_the_turn() {
    let readers = Readers::default();
    let place = place();
    let (ends, bodies): (Vec<_>, Vec<_>) = (0..2).map(|_| stuck()).unzip();
    for body in bodies {
        let reading = readers.read(&place, false, body);
        assert!(timeout(Duration::from_millis(20), reading).await.is_err());
    }
    // Both threads read on, although no request waits for them any more.
    let (read, was_read) = mpsc::channel();
    let late = readers.read(&place, false, move || read.send(()));
    assert!(timeout(Duration::from_millis(20), late).await.is_err());
    for end in ends {
        end.send(()).expect("it waits");
    }
    assert_eq!(is_soon(readers.read(&place, false, || 7)).await, Some(7));
    assert!(was_read.try_recv().is_err());
}
