use super::{Allowance, Duration, Instant};

const MAX_BURST: u32 = 5;
const REFILL_INTERVAL: Duration = Duration::from_secs(1);

#[test]
fn after_a_burst_there_is_one_in_a_while() {
    let start = Instant::now();
    let mut allowance = Allowance::new(MAX_BURST, REFILL_INTERVAL);
    for _ in 0..MAX_BURST {
        assert_eq!(allowance.take(start), Ok(()));
    }
    let next = start + REFILL_INTERVAL;
    assert_eq!(allowance.take(start), Err(next));
    assert_eq!(allowance.take(next - REFILL_INTERVAL / 4), Err(next));
    assert_eq!(allowance.take(next), Ok(()));
    assert_eq!(allowance.take(next), Err(next + REFILL_INTERVAL));
    // A quiet while later.
    let later = next + REFILL_INTERVAL * MAX_BURST;
    for _ in 0..MAX_BURST {
        assert_eq!(allowance.take(later), Ok(()));
    }
    assert!(allowance.take(later).is_err());
}
