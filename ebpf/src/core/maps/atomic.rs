//! Counters that several processors change.

/// Adds to a counter.
#[inline(always)]
pub fn add(count: *mut u64, change: u64) {
    // core has no fetch_add for this target, only loads and stores.
    // SAFETY: adds to a valid, aligned map value; all writers do it this way.
    unsafe {
        core::arch::asm!(
            "lock *(u64 *)({count} + 0) += {change}",
            count = in(reg) count,
            change = in(reg) change,
        );
    }
}
