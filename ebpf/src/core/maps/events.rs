//! Events: for those who trace, and the last refusals.

use core::ptr;

use aya_ebpf::{
    bindings::{BPF_NOEXIST, BPF_RB_NO_WAKEUP},
    btf_maps::{Array, HashMap, RingBuf},
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_current_comm, bpf_ktime_get_boot_ns},
    },
    macros::btf_map,
};
use sidetrack_common::{
    addr::Addr,
    decide::Owner,
    event::{COMM_LEN, EVENTS_LOST, Event, EventKind, RefusalKey, TRACED_UNTIL},
    names::EVENTS_BYTES,
    rule::Rule,
};

use sidetrack_ebpf::own_map::ON_DEMAND;

use super::atomic;

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
fn boot_time() -> u64 {
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

/// What a program reports. The rest of the [`Event`] is filled in here.
pub struct Report {
    /// See [`Event::netns`].
    pub netns: u64,
    /// See [`Event::cookie`].
    pub cookie: u64,
    /// See [`Event::source`].
    pub source: Addr,
    /// See [`Event::destination`].
    pub destination: Addr,
    /// See [`Event::source_port`].
    pub source_port: u16,
    /// See [`Event::destination_port`].
    pub destination_port: u16,
    /// See [`Event::capture_port`].
    pub capture_port: u16,
    /// See [`Event::kind`].
    pub kind: EventKind,
    /// See [`Event::rule`].
    pub rule: Rule,
    /// See [`Event::index`].
    pub index: u32,
    /// See [`Event::errno`].
    pub errno: i32,
    /// See [`Event::uid`] and [`Event::gid`]. None of a program that does not run in the process that connects, or may
    /// not ask which it is: programs of setsockopt in Linux 5.15.
    pub owner: Option<Owner>,
}

/// A row that says nothing, for [`LAST_REFUSAL`].
static NOTHING: Event = Event {
    at: 0,
    netns: 0,
    cookie: 0,
    source: Addr::UNSPECIFIED,
    destination: Addr::UNSPECIFIED,
    source_port: 0,
    destination_port: 0,
    capture_port: 0,
    kind: 0,
    rule: Rule::NoPolicy,
    index: 0,
    errno: 0,
    pid: 0,
    uid: 0,
    gid: 0,
    comm: [0; COMM_LEN],
    written: 0,
};

/// Remembers a refusal, and passes the event to those who trace. Without room an event is lost, and counted;
/// without memory only the last refusal is not known.
///
/// Events are written where they stay: together with a hook's own variables one does not fit on BPF's stack.
#[inline(always)]
pub fn report(report: &Report) {
    if report.errno != 0 {
        let key = RefusalKey {
            netns: report.netns,
            rule: report.rule,
            pad: 0,
        };
        if LAST_REFUSAL.get_ptr_mut(&key).is_none() {
            let _ = LAST_REFUSAL.insert(&key, &NOTHING, BPF_NOEXIST.into());
        }
        if let Some(row) = LAST_REFUSAL.get_ptr_mut(&key) {
            write(row, report);
        }
    }
    if !is_traced() {
        return;
    }
    match EVENTS.reserve(0) {
        Some(mut entry) => {
            write(entry.as_mut_ptr(), report);
            // Without a wake-up: the agent looks by itself.
            entry.submit(BPF_RB_NO_WAKEUP.into());
        }
        None => {
            if let Some(lost) = TRACING.get_ptr_mut(EVENTS_LOST) {
                atomic::add(lost, 1);
            }
        }
    }
}

/// Writes an event.
#[inline(always)]
fn write(event: *mut Event, report: &Report) {
    macro_rules! set {
        ($field:ident, $value:expr) => {
            // SAFETY: a field of a map's row or of a reserved entry, which live until the program has ended. Several
            // programs may write a row at a time: `written` says so.
            unsafe { ptr::write_volatile(&raw mut (*event).$field, $value) }
        };
    }
    let now = boot_time();
    set!(at, now);
    set!(netns, report.netns);
    set!(cookie, report.cookie);
    set!(source, report.source);
    set!(destination, report.destination);
    set!(source_port, report.source_port);
    set!(destination_port, report.destination_port);
    set!(capture_port, report.capture_port);
    set!(kind, report.kind as u16);
    set!(rule, report.rule);
    set!(index, report.index);
    set!(errno, report.errno);
    let owner = report.owner.unwrap_or(Owner::UNKNOWN);
    set!(uid, owner.uid);
    set!(gid, owner.gid);
    if report.owner.is_some() {
        set!(pid, (bpf_get_current_pid_tgid() >> 32) as u32);
        // SAFETY: it writes the whole field, zeros if it fails.
        unsafe { bpf_get_current_comm((&raw mut (*event).comm).cast(), COMM_LEN as u32) };
    } else {
        set!(pid, 0);
        set!(comm, [0; COMM_LEN]);
    }
    set!(written, now);
}
