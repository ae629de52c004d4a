use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

use super::*;

/// Far more than a search needs that only sends a message.
const PATIENCE: Duration = Duration::from_secs(30);

/// A search that says that it ran.
fn says(text: &'static str, to: &Sender<&'static str>) -> impl FnOnce() + Send + 'static {
    let to = to.clone();
    move || {
        let _ = to.send(text);
    }
}

/// What the searches have said, once the last has ended.
async fn said(ended: Receiver<&'static str>) -> Vec<&'static str> {
    let said = tokio::task::spawn_blocking(move || ended.iter().collect());
    let said = timeout(PATIENCE, said).await;
    said.expect("all end").expect("no panic")
}

#[tokio::test]
async fn a_search_that_cannot_begin_at_once_is_not_lost() {
    let searches = Searches::new(1);
    let (end, ended) = channel();
    let (begin, begun) = channel::<()>();
    let first = says("first", &end);
    let running = searches.start(1, move || {
        let _ = begun.recv();
        first();
    });
    assert!(running.is_some());
    for (cookie, text) in [
        (1, "old"),
        (2, "old"),
        (3, "other"),
        (4, "cancelled"),
        (2, "new"),
        (1, "again"),
    ] {
        assert!(searches.start(cookie, says(text, &end)).is_none());
    }
    searches.cancel(4);
    // Nothing waits there.
    searches.cancel(5);
    drop(end);
    begin.send(()).expect("the search waits");
    // The newest one of each namespace, the running one's after those that have waited.
    assert_eq!(said(ended).await, ["first", "new", "other", "again"]);
    for _ in 0..100 {
        if searches.pending.lock().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nothing waits any more");
}
