//! tc filters: how the program is attached where the kernel has no links for that (before Linux 6.6). All of this is
//! done in the namespace of the calling thread.
//!
//! Nobody has to remember a filter: the kernel lists it with its name and program, and it ends with its interface.

use std::{
    collections::BTreeSet,
    io,
    ops::ControlFlow,
    os::fd::{AsRawFd as _, BorrowedFd},
    thread,
    time::{Duration, Instant},
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption},
};
use nix::sched::{CloneFlags, unshare};

use crate::kernel::{
    netlink::{self, unless},
    sys,
};

/// The filter's name, which is the program's. What has another name is another program's.
const NAME: &str = "st_forward";
/// Its place among others: the number that routes and rules for forwarded packets have as their protocol.
const PRIORITY: u32 = 174;
const HANDLE: u32 = 1;
/// `ETH_P_ALL` of linux/if_ether.h.
const ALL_PROTOCOLS: u16 = 3;
/// The qdisc that takes filters for received packets.
const CLSACT: &str = "clsact";
/// A pod can have any number of interfaces and filters.
const DEADLINE: Duration = Duration::from_millis(300);

/// Attaches the program to interfaces, but to so many at a time only; answers to how many it is not yet attached.
///
/// # Errors
/// If the kernel refuses, or the namespace has so much that looking at it takes too long.
pub fn attach(
    program: BorrowedFd<'_>,
    interfaces: &BTreeSet<u32>,
    at_a_time: usize,
) -> io::Result<usize> {
    let id = sys::program_id(program)?;
    let until = Instant::now() + DEADLINE;
    let mut missing = Vec::new();
    for ifindex in interfaces {
        if !filters(*ifindex, TcHandle::MIN_INGRESS, until)?.contains(&Some(id)) {
            missing.push(*ifindex);
        }
    }
    for ifindex in missing.iter().take(at_a_time) {
        // It may vanish meanwhile.
        unless(&[libc::ENODEV], add(program, *ifindex))?;
    }
    Ok(missing.len().saturating_sub(at_a_time))
}

/// Removes the program from all interfaces but these.
///
/// # Errors
/// As for [`attach`].
pub fn remove_others(interfaces: &BTreeSet<u32>) -> io::Result<()> {
    let until = Instant::now() + DEADLINE;
    for ifindex in with_qdisc(until)?.difference(interfaces) {
        let listed = filters(*ifindex, TcHandle::MIN_INGRESS, until)?;
        if !listed.iter().any(Option::is_some) {
            continue;
        }
        let request = RouteNetlinkMessage::DelTrafficFilter(filter(*ifindex));
        unless(&[libc::ENODEV, libc::ENOENT], netlink::change(request, 0))?;
        // One without filters does nothing, whoever added it.
        let rest = [TcHandle::MIN_INGRESS, TcHandle::MIN_EGRESS];
        if rest
            .map(|side| filters(*ifindex, side, until))
            .iter()
            .all(|listed| matches!(listed, Ok(none) if none.is_empty()))
        {
            let request = RouteNetlinkMessage::DelQueueDiscipline(qdisc(*ifindex));
            unless(&[libc::ENODEV, libc::ENOENT], netlink::change(request, 0))?;
        }
    }
    Ok(())
}

/// Whether the kernel has such filters, tried with a program in a namespace of its own.
pub fn work(program: BorrowedFd<'_>) -> bool {
    /// Index of lo in every namespace.
    const LO: u32 = 1;
    thread::scope(|scope| {
        let tried = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            add(program, LO)
        });
        matches!(tried.join(), Ok(Ok(())))
    })
}

fn add(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    let request = RouteNetlinkMessage::NewQueueDiscipline(qdisc(ifindex));
    let added = netlink::change(request, NLM_F_CREATE | NLM_F_EXCL);
    unless(&[libc::EEXIST], added)?;
    let mut request = filter(ifindex);
    let options = [
        TcFilterBpfOption::ProgFd(program.as_raw_fd() as u32),
        TcFilterBpfOption::ProgName(NAME.to_owned()),
        // What the program returns decides, not a class.
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ];
    let options = options.into_iter().map(TcOption::Bpf).collect();
    request.attributes.push(TcAttribute::Options(options));
    // Replaces another agent's in place.
    netlink::change(RouteNetlinkMessage::NewTrafficFilter(request), NLM_F_CREATE)
}

/// The filters of an interface on one side: for ours the id of its program, for others `None`.
fn filters(ifindex: u32, side: u16, until: Instant) -> io::Result<Vec<Option<u32>>> {
    let mut request = TcMessage::with_index(ifindex as i32);
    request.header.parent = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: side,
    };
    let mut found = Vec::new();
    let socket = netlink::open(netlink_sys::protocols::NETLINK_ROUTE)?;
    let listed = netlink::dump(
        &socket,
        RouteNetlinkMessage::GetTrafficFilter(request),
        until,
        |message| {
            if let RouteNetlinkMessage::NewTrafficFilter(message) = message {
                found.push(ours(&message));
            }
            ControlFlow::Continue(())
        },
    );
    unless(&[libc::ENODEV], listed)?;
    Ok(found)
}

/// The id of the program, if this is a filter of ours.
fn ours(message: &TcMessage) -> Option<u32> {
    let options = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        })?;
    let has_name = options.iter().any(
        |option| matches!(option, TcOption::Bpf(TcFilterBpfOption::ProgName(name)) if name == NAME),
    );
    let id = options.iter().find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
        _ => None,
    });
    id.filter(|_| has_name && message.header.info >> 16 == PRIORITY)
}

/// The interfaces that have a qdisc for such filters.
fn with_qdisc(until: Instant) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let socket = netlink::open(netlink_sys::protocols::NETLINK_ROUTE)?;
    let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
    netlink::dump(&socket, request, until, |message| {
        if let RouteNetlinkMessage::NewQueueDiscipline(message) = message
            && message
                .attributes
                .contains(&TcAttribute::Kind(CLSACT.to_owned()))
        {
            found.insert(message.header.index as u32);
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn qdisc(ifindex: u32) -> TcMessage {
    let mut message = TcMessage::with_index(ifindex as i32);
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: 0,
    };
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    message
}

/// What the filter is found by.
fn filter(ifindex: u32) -> TcMessage {
    let mut message = TcMessage::with_index(ifindex as i32);
    message.header.parent = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: TcHandle::MIN_INGRESS,
    };
    message.header.handle = TcHandle::from(HANDLE);
    message.header.info = PRIORITY << 16 | u32::from(ALL_PROTOCOLS.to_be());
    message.attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned())];
    message
}
