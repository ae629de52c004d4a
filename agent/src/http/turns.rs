//! Work that is done for few clients at a time. Of those that wait, the one that [holds](Place::holds)
//! least is next, so that nobody waits behind the many connections of somebody else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::places::Place;

/// A queue of clients. What waits in it is part of what its connection holds, so it needs no limit of its
/// own.
#[derive(Clone, Debug)]
pub struct Turns(Arc<Mutex<Queue>>);

/// One client's turn, until it is dropped.
#[derive(Debug)]
pub struct Turn(Turns);

#[derive(Debug)]
struct Queue {
    free: usize,
    waiting: Vec<(Place, oneshot::Sender<Turn>)>,
}

impl Turns {
    /// So many clients have a turn at a time.
    #[must_use]
    pub fn new(at_a_time: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue {
            free: at_a_time,
            waiting: Vec::new(),
        })))
    }

    /// Waits for a turn.
    pub async fn turn(&self, place: &Place) -> Turn {
        loop {
            let waiting = {
                let mut queue = self.queue();
                if queue.free > 0 {
                    queue.free -= 1;
                    return Turn(self.clone());
                }
                let (next, waiting) = oneshot::channel();
                queue.waiting.push((place.clone(), next));
                waiting
            };
            if let Ok(turn) = waiting.await {
                return turn;
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Who is next; `None` if nobody waits.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        self.waiting.retain(|(_, next)| !next.is_closed());
        let holdings = self.waiting.iter().map(|(place, _)| place.holding());
        let (at, _) = holdings.enumerate().min_by_key(|(_, holding)| *holding)?;
        Some(self.waiting.remove(at).1)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        let Some(next) = queue.next() else {
            queue.free += 1;
            return;
        };
        drop(queue);
        // If it has just gone, the turn is dropped again, and the next one gets it.
        let _ = next.send(Self(self.0.clone()));
    }
}

#[cfg(test)]
mod tests {
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
}
