//! Threads that read what clients send, beside the loop that accepts and answers.
//!
//! Invariants: so many bodies are read at a time, of large ones one, so that those never keep all threads
//! from the small ones; a request whose deadline has passed is not read.

use sidetrack_base::{
    http::{places::Place, turns::Turns},
    runtime,
};

/// How many bodies are read at a time.
const READERS: usize = 2;

/// The threads.
#[derive(Debug)]
pub struct Readers {
    all: Turns,
    large: Turns,
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            all: Turns::new(READERS),
            large: Turns::new(1),
        }
    }
}

impl Readers {
    /// Runs `read` when it is its turn. Dropped before that, it is not run.
    pub async fn read<T: Send + 'static>(
        &self,
        place: &Place,
        large: bool,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let of_large = match large {
            true => Some(self.large.turn(place).await),
            false => None,
        };
        let turn = self.all.turn(place).await;
        place.works();
        let read = move || {
            // Kept until it is read, also if no request waits for that any more.
            let _turn = (turn, of_large);
            read()
        };
        runtime::blocking(read).await
    }
}

#[cfg(test)]
mod tests;
