//! Work that is done for few clients at a time. Of those that wait, the one that [holds](Place::holds)
//! least is next, so that no client waits behind the many connections of another one.

use std::sync::Arc;

use parking_lot::Mutex;
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
                let mut queue = self.0.lock();
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
}

impl Queue {
    /// Who is next; `None` if no client waits.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        self.waiting.retain(|(_, next)| !next.is_closed());
        let holdings = self.waiting.iter().map(|(place, _)| place.holding());
        let (at, _) = holdings.enumerate().min_by_key(|(_, holding)| *holding)?;
        Some(self.waiting.remove(at).1)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.0.0.lock();
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
mod tests;
