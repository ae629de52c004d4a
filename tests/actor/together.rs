//! Does many things, some at the same time.

use std::{panic, thread};

use anyhow::Result;

/// Most of them wait.
const AT_ONCE: usize = 8;

/// Does the same for each; the results in the order of what it is done for.
pub fn together<T: Sync, R: Send>(
    all: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let every = |first: usize| -> Result<Vec<(usize, R)>> {
        let own = all.iter().enumerate().skip(first).step_by(AT_ONCE);
        own.map(|(place, it)| Ok((place, work(it)?))).collect()
    };
    let every = &every;
    let mut done = Vec::with_capacity(all.len());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE)
            .map(|first| scope.spawn(move || every(first)))
            .collect();
        for thread in threads {
            let some = thread.join();
            done.extend(some.unwrap_or_else(|panic| panic::resume_unwind(panic))?);
        }
        anyhow::Ok(())
    })?;
    done.sort_by_key(|(place, _)| *place);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}
