use std::time::{Duration, Instant};

use super::{Allowance, BURST, REFILL_INTERVAL};

#[test]
fn changes_are_followed_at_once_until_there_are_too_many() {
    let start = Instant::now();
    let mut allowance = Allowance::new(start);
    for _ in 0..BURST {
        assert_eq!(allowance.wait(start), Duration::ZERO);
    }
    assert_eq!(allowance.wait(start), REFILL_INTERVAL);
    assert_eq!(allowance.wait(start), 2 * REFILL_INTERVAL);
    // A quiet while later.
    let later = start + 30 * REFILL_INTERVAL;
    assert_eq!(allowance.wait(later), Duration::ZERO);
}
