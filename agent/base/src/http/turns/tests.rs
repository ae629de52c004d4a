use std::time::Duration;

use futures_util::future::{FutureExt as _, join};
use tokio::task::yield_now;

use super::Turns;
use crate::http::places::{Place, Places};

fn place(places: &Places, address: &str) -> Place {
    let address = address.parse().expect("an address");
    places.enter(Some(address)).expect("a place").0
}

#[tokio::test]
async fn who_holds_least_is_next() {
    let places = Places::new(8, Duration::ZERO);
    let greedy = [(); 3].map(|()| place(&places, "10.0.0.1"));
    let modest = place(&places, "10.0.0.2");
    let turns = Turns::new(1);
    let first = turns.turn(&greedy[0]).await;
    let order = std::cell::RefCell::new(Vec::new());
    let wait = async |name: u8, place: &Place| {
        let _turn = turns.turn(place).await;
        order.borrow_mut().push(name);
    };
    let waiting = join(
        join(wait(1, &greedy[1]), wait(2, &greedy[2])),
        wait(3, &modest),
    );
    let release = async {
        yield_now().await;
        drop(first);
    };
    join(waiting, release).await;
    assert_eq!(*order.borrow(), [3, 1, 2]);
}

#[tokio::test]
async fn a_turn_of_somebody_who_has_gone_is_not_lost() {
    let places = Places::new(8, Duration::ZERO);
    let place = place(&places, "10.0.0.1");
    let turns = Turns::new(1);
    let first = turns.turn(&place).await;
    let mut gone_before = Box::pin(turns.turn(&place));
    let mut gone_after = Box::pin(turns.turn(&place));
    assert!((&mut gone_before).now_or_never().is_none());
    assert!((&mut gone_after).now_or_never().is_none());
    drop(gone_before);
    drop(first);
    // It has its turn, and does not know yet.
    drop(gone_after);
    assert!(turns.turn(&place).now_or_never().is_some());
}
