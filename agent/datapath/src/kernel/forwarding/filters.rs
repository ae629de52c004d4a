//! tc filters: how the program is attached where the kernel has no links for that (before Linux 6.6). All of this is
//! done in the namespace of the calling thread.
//!
//! No agent has to remember a filter: the kernel says by its name whether it is sidetrack's. Others' filters are not
//! read, so a pod cannot be in the way with many of them, or with some that cannot be understood.

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
use nix::{
    net::if_::if_nameindex,
    sched::{CloneFlags, unshare},
};

use sidetrack_common::pod::LOOPBACK_IFINDEX;
use sidetrack_reconcile::repairs::IngressProgram;

use super::name;
use crate::kernel::{
    netlink::{self, ignore_errnos},
    sys,
};

/// Behind a filter's name, which is the program's, if the qdisc was added for it as well. What has another name is another
/// program's.
const WITH_QDISC: &str = ", clsact";
const HANDLE: u32 = 1;
/// `ETH_P_ALL` of linux/if_ether.h.
const ALL_PROTOCOLS: u16 = 3;
/// The qdisc that takes filters for received packets.
const CLSACT: &str = "clsact";
/// How long a turn may take. A pod can have any number of interfaces; the rest has its turn later.
const DEADLINE: Duration = Duration::from_millis(200);

/// What the kernel says if there is no such filter, qdisc or interface, or if the interface has its filters in a block
/// that is shared, where none of sidetrack's can be.
const ABSENT: [i32; 4] = [libc::ENOENT, libc::EINVAL, libc::ENODEV, libc::EOPNOTSUPP];

/// Filters with lower numbers run before it. The number is that of the protocol of rules and routes for forwarded packets,
/// so that people recognize it, and the one before.
const fn priority(kind: IngressProgram) -> u32 {
    match kind {
        IngressProgram::Forwarded | IngressProgram::NodeCalls => 174,
        IngressProgram::Queries => 173,
    }
}

/// A filter of sidetrack.
struct Found {
    /// Its program's id.
    program: u32,
    /// Whether the qdisc was added for it.
    added_qdisc: bool,
}

/// Attaches the program to interfaces that do not have it, to so many at a time, and removes it from all others.
/// Answers how many still need it.
///
/// # Errors
/// The first one, if the kernel refuses; the other interfaces have their turn nevertheless.
pub fn follow(
    kind: IngressProgram,
    program: BorrowedFd<'_>,
    interfaces: &BTreeSet<u32>,
    at_a_time: usize,
) -> io::Result<usize> {
    let until = Instant::now() + DEADLINE;
    let id = sys::program_id(program)?;
    let (mut added, mut rest, mut result) = (0, 0, Ok(()));
    for ifindex in interfaces {
        let found = match find(kind, *ifindex) {
            Ok(found) => found,
            Err(error) => {
                result = result.and(Err(error));
                continue;
            }
        };
        if found.as_ref().is_some_and(|found| found.program == id) {
            continue;
        }
        if added == at_a_time || Instant::now() > until {
            rest += 1;
            continue;
        }
        added += 1;
        // It may vanish meanwhile.
        result = result.and(ignore_errnos(
            &[libc::ENODEV],
            add((kind, program), *ifindex, found),
        ));
    }
    result.and(remove_others(kind, interfaces, until))?;
    Ok(rest)
}

/// Removes the program from all interfaces.
///
/// # Errors
/// If the kernel refuses, or there are so many interfaces that it takes too long.
pub fn remove_all(kind: IngressProgram) -> io::Result<()> {
    remove_others(kind, &BTreeSet::new(), Instant::now() + DEADLINE)
}

fn remove_others(
    kind: IngressProgram,
    interfaces: &BTreeSet<u32>,
    until: Instant,
) -> io::Result<()> {
    for interface in &if_nameindex()? {
        let ifindex = interface.index();
        if interfaces.contains(&ifindex) {
            continue;
        }
        if Instant::now() > until {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the pod has more interfaces than can be looked at in time",
            ));
        }
        if let Some(found) = find(kind, ifindex)? {
            remove(kind, ifindex, &found, until)?;
        }
    }
    Ok(())
}

/// Whether the kernel has such filters, tried with a program in a namespace of its own.
pub fn work(program: BorrowedFd<'_>) -> bool {
    thread::scope(|scope| {
        let tried = thread::Builder::new().spawn_scoped(scope, || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let program = (IngressProgram::Forwarded, program);
            add(program, LOOPBACK_IFINDEX, None)
        });
        matches!(tried.map(|it| it.join()), Ok(Ok(Ok(()))))
    })
}

/// Adds the filter, or gives the one that was found another program in its place.
fn add(
    (kind, program): (IngressProgram, BorrowedFd<'_>),
    ifindex: u32,
    found: Option<Found>,
) -> io::Result<()> {
    let added_qdisc = match found {
        Some(found) => found.added_qdisc,
        None => {
            let request = RouteNetlinkMessage::NewQueueDiscipline(qdisc(ifindex));
            let added = netlink::change(request, NLM_F_CREATE | NLM_F_EXCL);
            let is_new = added.is_ok();
            ignore_errnos(&[libc::EEXIST], added)?;
            is_new
        }
    };
    let mut name = name(kind).to_owned();
    if added_qdisc {
        name += WITH_QDISC;
    }
    let mut request = filter(kind, ifindex);
    let options = [
        TcFilterBpfOption::ProgFd(program.as_raw_fd() as u32),
        TcFilterBpfOption::ProgName(name),
        // What the program returns decides, not a class.
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ];
    let options = options.into_iter().map(TcOption::Bpf).collect();
    request.attributes.push(TcAttribute::Options(options));
    let request = RouteNetlinkMessage::NewTrafficFilter(request);
    netlink::change(request, NLM_F_CREATE)
}

fn remove(kind: IngressProgram, ifindex: u32, found: &Found, until: Instant) -> io::Result<()> {
    let request = RouteNetlinkMessage::DelTrafficFilter(filter(kind, ifindex));
    ignore_errnos(&ABSENT, netlink::change(request, 0))?;
    if found.added_qdisc && is_empty(ifindex, until) {
        let request = RouteNetlinkMessage::DelQueueDiscipline(qdisc(ifindex));
        ignore_errnos(&ABSENT, netlink::change(request, 0))?;
    }
    Ok(())
}

/// The filter of sidetrack on an interface.
fn find(kind: IngressProgram, ifindex: u32) -> io::Result<Option<Found>> {
    let request = RouteNetlinkMessage::GetTrafficFilter(filter(kind, ifindex));
    match netlink::get(request) {
        Ok(RouteNetlinkMessage::NewTrafficFilter(message)) => Ok(ours(kind, &message)),
        Ok(_) => Ok(None),
        Err(error) => ignore_errnos(&ABSENT, Err(error)).map(|()| None),
    }
}

fn ours(kind: IngressProgram, message: &TcMessage) -> Option<Found> {
    let options = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        })?;
    let (mut name, mut program) = (None, None);
    for option in options {
        match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(text)) => name = Some(text.as_str()),
            TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => program = Some(*id),
            _ => {}
        }
    }
    let added_qdisc = match name?.strip_prefix(self::name(kind))? {
        "" => false,
        WITH_QDISC => true,
        _ => return None,
    };
    Some(Found {
        program: program?,
        added_qdisc,
    })
}

/// Whether a qdisc has no filters; one that is not understood is a filter.
fn is_empty(ifindex: u32, until: Instant) -> bool {
    let sides = [TcHandle::MIN_INGRESS, TcHandle::MIN_EGRESS];
    sides.into_iter().all(|side| {
        let mut request = TcMessage::with_index(ifindex as i32);
        request.header.parent = parent(side);
        let request = RouteNetlinkMessage::GetTrafficFilter(request);
        let mut is_empty = true;
        let listed = netlink::open(netlink_sys::protocols::NETLINK_ROUTE).and_then(|socket| {
            netlink::dump(&socket, request, until, |_: RouteNetlinkMessage| {
                is_empty = false;
                ControlFlow::Break(())
            })
        });
        listed.is_ok() && is_empty
    })
}

fn qdisc(ifindex: u32) -> TcMessage {
    let mut message = TcMessage::with_index(ifindex as i32);
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = parent(0);
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    message
}

/// What the filter is found by.
fn filter(kind: IngressProgram, ifindex: u32) -> TcMessage {
    let mut message = TcMessage::with_index(ifindex as i32);
    message.header.parent = parent(TcHandle::MIN_INGRESS);
    message.header.handle = TcHandle::from(HANDLE);
    message.header.info = priority(kind) << 16 | u32::from(ALL_PROTOCOLS.to_be());
    message.attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned())];
    message
}

/// A side of the qdisc; 0 is the qdisc itself.
const fn parent(side: u16) -> TcHandle {
    TcHandle {
        major: TcHandle::CLSACT.major,
        minor: side,
    }
}
