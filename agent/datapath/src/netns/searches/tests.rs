use std::{sync::mpsc, time::Duration};

use super::*;

/// Far more than a search needs that only sends a message.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_search_that_cannot_begin_at_once_is_not_lost() {
    let searches = Searches::new(1);
    let (end, ended) = mpsc::channel();
    let (begin, begun) = mpsc::channel::<()>();
    let first = end.clone();
    let running = searches.start(1, move || {
        let _ = begun.recv();
        let _ = first.send(1);
    });
    assert!(running.is_some());
    for cookie in [2, 3, 2] {
        let end = end.clone();
        let waiting = searches.start(cookie, move || {
            let _ = end.send(cookie);
        });
        assert!(waiting.is_none());
    }
    drop(end);
    begin.send(()).expect("the search waits");
    let order = tokio::task::spawn_blocking(move || ended.iter().collect::<Vec<_>>());
    let order = tokio::time::timeout(PATIENCE, order).await;
    // Namespace 2 is searched once; the channel ends with the last search.
    assert_eq!(order.expect("all end").expect("no panic"), [1, 2, 3]);
}
