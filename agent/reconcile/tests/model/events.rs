//! What may happen, and random sequences of it.

use crate::pods::{VARIANTS, Variant};

/// Names of pods in a sequence. The last one is too long for its row.
pub const SLOTS: usize = 4;

/// Kind of a namespace with nothing special.
pub const ORDINARY: u32 = 5;
/// A whole listing.
pub const LIST: Event = Event::List { complete: true };

/// Something that happens. `usize` is always the slot of a pod.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A pod is made. One that has its name is deleted; its processes still run.
    Create(usize, Variant),
    /// A pod's manifest changes.
    Change(usize, Variant),
    /// All its containers were started, as far as its manifest says.
    Running(usize),
    /// A pod is deleted. Its processes still run.
    Delete(usize),
    /// A process of a pod starts, in a namespace of the given kind if there is none.
    Start(usize, u32),
    /// The pod's processes listen.
    Listen(usize),
    /// Its processes end.
    End(usize),
    /// Processes of deleted pods end.
    EndDeleted,
    /// Its processes end, and its namespace goes.
    Vanish(usize),
    /// It is given another namespace while processes run in the old one.
    Replace(usize, u32),
    /// Its path leads to another pod's namespace.
    Alias(usize, usize),
    /// The plugin sends a request for a pod, in a namespace of the given kind.
    Attach(usize, u32),
    /// Its sandbox is removed, twice.
    Forget(usize),
    /// Sandboxes of deleted pods are gone.
    KeepSandboxes,
    /// The agent reads the listing.
    List { complete: bool },
    /// The agent cannot read the listing.
    CannotList,
    /// Time passes, in milliseconds.
    Tick(u64),
    /// Routes, interfaces or addresses of a namespace change.
    Routes(usize, u32),
    /// The connection into a namespace breaks.
    LinkBreaks(usize),
    /// Connections are made.
    Traffic,
    /// A process of a pod was noticed.
    Awaited(usize),
    /// Another agent takes over.
    Restart,
    /// The nth write from now on fails.
    FailNth(u32),
    /// Ten writes fail, every nth.
    FailEvery(u32),
    /// The agent is killed at the nth write from now on.
    Crash(u32),
    /// Sidecars begin to listen while the next pod's row is written.
    Race,
    /// Processes cannot be read, or can be again.
    Unseen(bool),
    /// Somebody removes or replaces something in the kernel.
    Lose(usize, u32),
}

/// A sequence of 30 to 60 events.
pub fn generate(random: &mut fastrand::Rng) -> Vec<Event> {
    let length = random.usize(30..=60);
    (0..length).map(|_| event(random)).collect()
}

fn event(random: &mut fastrand::Rng) -> Event {
    // The pod with the long name is rare.
    let slot = random.usize(0..SLOTS * 4 - 3) / 4;
    let number = random.u32(..);
    let variant = VARIANTS[random.usize(..VARIANTS.len())];
    match random.u32(..106) {
        0..12 => Event::Create(slot, variant),
        12..17 => Event::Change(slot, variant),
        17..19 => Event::Running(slot),
        19..22 => Event::Delete(slot),
        22..33 => Event::Start(slot, number),
        33..36 => Event::Listen(slot),
        36..38 => Event::End(slot),
        38..40 => Event::EndDeleted,
        40..42 => Event::Vanish(slot),
        42..44 => Event::Replace(slot, number),
        44 => Event::Alias(slot, random.usize(..SLOTS)),
        45..50 => Event::Attach(slot, number),
        50 => Event::Forget(slot),
        51 => Event::KeepSandboxes,
        52..68 => Event::List {
            complete: random.u32(..4) > 0,
        },
        68 => Event::CannotList,
        69..81 => Event::Tick([500, 500, 2000, 10_000][random.usize(..4)]),
        81..84 => Event::Routes(slot, number),
        84 => Event::LinkBreaks(slot),
        85..88 => Event::Traffic,
        88..90 => Event::Awaited(slot),
        90..92 => Event::Restart,
        92..94 => Event::FailNth(random.u32(..30)),
        94 => Event::FailEvery(random.u32(2..8)),
        95 => Event::Crash(random.u32(..30)),
        96..99 => Event::Race,
        99 => Event::Unseen(random.bool()),
        _ => Event::Lose(slot, number),
    }
}
