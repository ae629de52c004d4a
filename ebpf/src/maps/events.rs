//! Events: for those who trace, and the last refusals.

use aya_ebpf::{
    bindings::BPF_RB_NO_WAKEUP,
    btf_maps::{Array, HashMap, RingBuf},
    helpers::generated::bpf_ktime_get_boot_ns,
    macros::btf_map,
};
use sidetrack_common::{
    event::{EVENTS_LOST, Event, RefusalKey, TRACED_UNTIL},
    names::EVENTS_BYTES,
};

use super::{atomic, own_map::ON_DEMAND};

/// Until when somebody traces, which the agent writes, and how many events were lost.
#[btf_map]
static TRACING: Array<u64, 2> = Array::new();

/// Events for the agent, which reads them several times a second while somebody traces.
#[btf_map]
static EVENTS: RingBuf<Event, { EVENTS_BYTES as usize }> = RingBuf::new();

/// A pod's last refusal for each reason. A pod has no more rows than there are reasons.
#[btf_map]
static LAST_REFUSAL: HashMap<RefusalKey, Event, 65_536, ON_DEMAND> = HashMap::new();

/// Nanoseconds since boot.
#[inline(always)]
pub fn boot_time() -> u64 {
    // SAFETY: takes nothing and returns a number.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// Whether anybody traces.
#[inline(always)]
pub fn is_traced() -> bool {
    TRACING
        .get(TRACED_UNTIL)
        .is_some_and(|until| *until != 0 && boot_time() < *until)
}

/// Remembers a refusal, and passes the event to those who trace. Without room an event is lost, and counted;
/// without memory only the last refusal is not known.
#[inline(always)]
pub fn report(event: &Event) {
    if event.errno != 0 {
        let key = RefusalKey {
            netns: event.netns,
            rule: event.rule,
            pad: 0,
        };
        let _ = LAST_REFUSAL.insert(&key, event, 0);
    }
    // Without a wake-up: the agent looks by itself.
    if is_traced()
        && EVENTS.output(*event, u64::from(BPF_RB_NO_WAKEUP)).is_err()
        && let Some(lost) = TRACING.get_ptr_mut(EVENTS_LOST)
    {
        atomic::add(lost, 1);
    }
}
